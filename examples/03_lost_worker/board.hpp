#pragma once

// A few numbers that workers show to the launcher: a file that all map. It survives any kill -9.

#include <mend/core/hash.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

struct Board {
  static constexpr std::int64_t most_steps = 100'000;
  static constexpr std::size_t most_ranks = 64, most_kills = 1000;

  std::atomic<std::int64_t> committed;
  std::atomic<float> accuracy;
  std::atomic<bool> killed[most_kills];
  mend::Hash128 hash[most_ranks];
  float loss[most_steps];
  std::int64_t when[most_steps];  // of each commit, nanoseconds

  static Board& create(const std::string& path) { return map(path, O_CREAT | O_TRUNC); }
  static Board& open(const char* path) { return map(path != nullptr ? path : "", 0); }

 private:
  // Never unmapped: it lives as long as the process.
  static Board& map(const std::string& path, int flags) {
    int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | flags, 0644);
    void* memory = MAP_FAILED;
    if (file >= 0 && ::ftruncate(file, sizeof(Board)) == 0)
      memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0) ::close(file);
    if (memory == MAP_FAILED) throw std::runtime_error{"cannot map " + path};
    return *static_cast<Board*>(memory);  // all zeros is a valid Board
  }
};
