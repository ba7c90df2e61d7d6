// A full checkpoint against the same bytes written and read plainly, and what of it a step waits
// for. Arguments: a directory to write in (default: the current one).
#include <mend/checkpoint/full_writer.hpp>
#include <mend/checkpoint/loader.hpp>
#include <mend/core/train_state.hpp>
#include <mend/store/directory.hpp>

#include "bars.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

namespace {

using mend::ByteCount;
using mend::checkpoint::FullWriter;

constexpr std::size_t mib = std::size_t{1} << 20;

struct Trainer {
  explicit Trainer(std::size_t bytes) {
    constexpr std::int64_t columns = 1024;
    std::size_t layers = 16;
    auto rows = static_cast<std::int64_t>(bytes / layers / sizeof(float)) / columns;
    std::mt19937 random{1};
    for (std::size_t i = 0; i < layers; ++i) {
      values.emplace_back(static_cast<std::size_t>(rows * columns));
      for (float& x : values.back()) x = static_cast<float>(random());
    }
    // Buffers that only the update changes are staged as tensors are, and need no gradients.
    for (std::size_t i = 0; i < layers; ++i)
      state.add_buffer("layer " + std::to_string(i), values[i], {},
                       {.shape = {rows, columns}, .before_image = false});
  }
  std::vector<std::vector<float>> values;
  mend::TrainState state;
};

//! The floor: the same bytes in pieces of 8 MiB, and one sync.
double raw_write(const Trainer& trainer, const std::string& path) {
  double begin = bench::seconds();
  mend::PosixFileSystem files;
  auto file = files.create(path);
  for (const auto& v : trainer.values)
    for (mend::ByteView rest = std::as_bytes(std::span{v}); !rest.empty();) {
      mend::ByteView piece = rest.first(std::min(rest.size(), 8 * mib));
      file.write(piece);
      rest = rest.subspan(piece.size());
    }
  file.sync();
  file.close();
  return bench::seconds() - begin;
}

void drop_cache(const std::string& path) {
  int descriptor = ::open(path.c_str(), O_RDONLY);
  if (descriptor < 0) return;
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  ::close(descriptor);
}

double raw_read(Trainer& trainer, const std::string& path) {
  double begin = bench::seconds();
  mend::PosixFileSystem files;
  auto file = files.open(path);
  std::uint64_t at = 0;
  for (auto& v : trainer.values) {
    auto bytes = std::as_writable_bytes(std::span{v});
    for (std::size_t done = 0; done < bytes.size(); done += 8 * mib) {
      std::size_t n = std::min(8 * mib, bytes.size() - done);
      file.read(at, bytes.subspan(done, n));
      at += n;
    }
  }
  return bench::seconds() - begin;
}

struct Times {
  std::vector<double> raw, full, stall, worst_stall, read, restore, warm_read, warm_restore;
};

//! `writer` is one that has written before, as all but the first checkpoint of a run find it.
void measure(Trainer& trainer, mend::Directory& store, FullWriter<mend::Directory>& writer,
             const std::string& folder, Times& times) {
  const mend::checkpoint::ShardLabel label{.step = 1, .run = "bench", .generation = 1};
  std::string plain = folder + "/plain";
  times.raw.push_back(raw_write(trainer, plain));

  // As a trainer that does nothing else meets it: begin, and wait for the end.
  double begin = bench::seconds();
  writer.begin(trainer.state, label);
  auto report = writer.wait();
  times.full.push_back(bench::seconds() - begin);
  if (report->error) throw mend::FileError{*report->error};

  // Beside the training: at its worst, when an update follows at once and waits for the copy; and
  // behind a lambda that computes for half as long as the write takes.
  for (double lambda : {0.0, times.full.back() / 2}) {
    store.remove(report->shard->name);
    begin = bench::seconds();
    writer.begin(trainer.state, label);
    double stalled = bench::seconds() - begin;
    for (double end = begin + lambda; bench::seconds() < end;) {
    }
    begin = bench::seconds();
    (void)writer.before_update();
    stalled += bench::seconds() - begin;
    (lambda > 0 ? times.stall : times.worst_stall).push_back(stalled);
    report = writer.wait();
    if (report->error) throw mend::FileError{*report->error};
  }

  mend::store::Manifest manifest;
  manifest.run.id = "bench";
  auto restore = [&] {
    double start = bench::seconds();
    mend::checkpoint::Loader loader{store};
    loader.open(manifest, {.step = 1, .generation = 1, .shards = {*report->shard}});
    loader.restore(trainer.state, 0, 1);
    return bench::seconds() - start;
  };
  drop_cache(plain);
  times.read.push_back(raw_read(trainer, plain));
  drop_cache(store.path() + "/" + report->shard->name);
  times.restore.push_back(restore());
  times.warm_read.push_back(raw_read(trainer, plain));
  times.warm_restore.push_back(restore());
  std::filesystem::remove(plain);
  store.remove(report->shard->name);
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = (argc > 1 ? std::string{argv[1]} : std::string{"."}) + "/mend_bench_full";
  double write_ratio = 0, stall_ratio = 0, restore_ratio = 0;
  for (std::size_t bytes : {256 * mib, 1024 * mib}) {
    Trainer trainer{bytes};
    std::filesystem::create_directory(folder);
    mend::Directory store{folder + "/ckpt"};
    FullWriter<mend::Directory> writer{store, ByteCount{bytes}};
    Times warm_up, t;
    measure(trainer, store, writer, folder, warm_up);
    for (int round = 0; round < (bytes < 512 * mib ? 7 : 5); ++round)
      measure(trainer, store, writer, folder, t);
    std::filesystem::remove_all(folder);
    auto rate = [&](const std::vector<double>& v) {
      return double(bytes) / double(mib) / bench::median(v);
    };
    fmt::print(
        "{} MiB: plain write {:.0f} MiB/s, full {:.0f}; of its {:.0f} ms a step waits {:.1f}, "
        "without "
        "a lambda {:.1f}; ",
        bytes / mib, rate(t.raw), rate(t.full), 1e3 * bench::median(t.full),
        1e3 * bench::median(t.stall), 1e3 * bench::median(t.worst_stall));
    fmt::print("plain read {:.0f} MiB/s, restore {:.0f}; from the page cache {:.0f}, {:.0f}\n",
               rate(t.read), rate(t.restore), rate(t.warm_read), rate(t.warm_restore));
    write_ratio = std::max(write_ratio, bench::median(t.full) / bench::median(t.raw));
    stall_ratio = std::max(stall_ratio, bench::median(t.stall) / bench::median(t.full));
    restore_ratio = std::max(restore_ratio, bench::median(t.restore) / bench::median(t.read));
  }
  bench::bar("full_write_vs_raw", write_ratio, 1.15, false);
  bench::bar("async_stall_vs_sync", stall_ratio, 0.15, false);
  bench::bar("restore_vs_read", restore_ratio, 1.5, false);
}
