// Resident memory that a session adds beyond the model, the slots and the before-image.
#include <mend/mend.hpp>

#include "bars.hpp"

#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr int layers = 48;
constexpr std::int64_t width = 512;

double resident() {
  long pages = 0, total = 0;
  std::FILE* f = std::fopen("/proc/self/statm", "r");
  if (f == nullptr || std::fscanf(f, "%ld %ld", &total, &pages) != 2) pages = 0;
  if (f != nullptr) std::fclose(f);
  return double(pages) * double(::sysconf(_SC_PAGESIZE));
}

}  // namespace

int main() {
  mend::TrainState state;
  std::vector<float> mean(4096);
  double model = 0;
  for (int i = 0; i < layers; ++i) {  // weights and biases, as in a transformer
    for (std::int64_t rows : {width, std::int64_t{1}}) {
      auto [w, g] = state.make<float>((rows > 1 ? "w" : "b") + std::to_string(i), {rows, width});
      for (float& x : w) x = 0.01f;
      for (float& x : g) x = 0.01f;
      model += double(w.size()) * (4 + 8);  // the value and Adam's two slots
    }
  }
  state.add_buffer("mean", mean);
  double before = resident();
  mend::comm::Tcp comm;
  mend::Session session{state, mend::Adam{}, comm, mend::ReplicaRecovery{}};
  for (int i = 0; i < 5; ++i) session.next(1000);
  double slots = model * 8 / 12;
  double extra = resident() - before - slots - double(session.before_image_bytes().value());
  fmt::print("model and slots {:.1f} MiB, before-image {} bytes, beyond them {:.1f} KiB\n",
             model / (1 << 20), session.before_image_bytes().value(), extra / 1024);
  bench::bar("session_extra_memory", extra / model, 0.01, false);
}
