// How long a compiler takes for a source that includes mend/mend.hpp, at -O2: by wall clock, each
// turn with the same for an empty source. Beside the bar: parsing alone, and a program with a
// session, most of whose time goes into the code of its rule and its session.
#include <fmt/core.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "bars.hpp"

namespace {

constexpr const char* session_program = R"(#include <mend/mend.hpp>

#include <vector>

int main() {
  std::vector<float> w(1000), g(1000);
  mend::TrainState state;
  state.add("w", w, g);
  auto comm = mend::comm::join_tcp();
  mend::Session session{state, mend::Adam{.lr = 1e-3f}, comm, mend::ReplicaRecovery{}};
  session.train(100, [&](mend::Step) {
    for (std::size_t i = 0; i < w.size(); ++i) g[i] = w[i] - 1;
    return 0.0f;
  });
}
)";

struct Source {
  const char* what;
  const char* text;
  const char* flags;
  int turns;
  std::vector<double> seconds{};
};

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "mend-compile-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::system_error{errno, std::generic_category()};
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

int main() {
  Source sources[] = {
      {"an empty source", "int main() {}\n", "-c", 7},
      {"mend/mend.hpp included", "#include <mend/mend.hpp>\n\nint main() {}\n", "-c", 7},
      {"the same, parsed only", "#include <mend/mend.hpp>\n\nint main() {}\n", "-fsyntax-only", 7},
      {"a program with a session", session_program, "-c", 3}};
  const Folder folder;
  const std::string out = (folder.path() / "out.o").string();
  for (int turn = 0; turn < 7; ++turn)
    for (Source& source : sources) {
      if (turn >= source.turns) continue;
      const std::string path = (folder.path() / "source.cpp").string();
      std::ofstream{path} << source.text;
      const std::string command =
          fmt::format("'{}' -std=c++20 -O2 -pthread -I'{}' {} '{}' -o '{}'", MEND_BENCH_COMPILER,
                      MEND_BENCH_INCLUDE, source.flags, path, out);
      const double start = bench::seconds();
      if (std::system(command.c_str()) != 0) {
        fmt::print("failed: {}\n", command);
        return 1;
      }
      source.seconds.push_back(bench::seconds() - start);
    }
  for (const Source& source : sources)
    fmt::print("  {:<26} {:6.2f} s\n", source.what, bench::median(source.seconds));
  bench::bar("compile_seconds", bench::median(sources[1].seconds), 3, false);
}
