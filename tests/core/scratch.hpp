#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace mend_test {

//! A directory of its own, gone at the end: `scratch / "name"` is a path in it.
struct Scratch {
  Scratch() : path{(std::filesystem::temp_directory_path() / "mend-XXXXXX").string()} {
    if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error{"no temporary directory"};
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::filesystem::remove_all(path); }

  [[nodiscard]] std::string operator/(std::string_view name) const {
    return path + "/" + std::string{name};
  }

  std::string path;
};

}  // namespace mend_test
