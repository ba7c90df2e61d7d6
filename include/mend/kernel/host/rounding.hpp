#pragma once

#include <cstdint>

namespace mend::kernel {

//! While it lives, this thread's arithmetic rounds to nearest, keeps denormal numbers and raises no
//! traps, whatever the trainer (or a compiler's -ffast-math start-up code, or a library) has set;
//! then the old mode returns. Part of "same bits": a flushed denormal would differ between ranks.
//! Cost: two register accesses.
class StandardRounding {
 public:
  StandardRounding() : old_{read()} {
    if (differs(old_)) write(standard);
  }
  StandardRounding(const StandardRounding&) = delete;
  StandardRounding& operator=(const StandardRounding&) = delete;
  ~StandardRounding() {
    if (differs(old_)) write(old_);
  }

 private:
#if defined(__x86_64__)
  using Register = std::uint32_t;  // MXCSR
  static constexpr Register standard = 0x1f80, flags = 0x3f;
  static Register read() {
    Register r;
    asm volatile("stmxcsr %0" : "=m"(r) : : "memory");
    return r;
  }
  static void write(Register r) { asm volatile("ldmxcsr %0" : : "m"(r) : "memory"); }
#elif defined(__aarch64__)
  using Register = std::uint64_t;  // FPCR
  static constexpr Register standard = 0, flags = 0;
  static Register read() {
    Register r;
    asm volatile("mrs %0, fpcr" : "=r"(r) : : "memory");
    return r;
  }
  static void write(Register r) { asm volatile("msr fpcr, %0" : : "r"(r) : "memory"); }
#else
  using Register = std::uint32_t;  // unknown machine: its default mode is trusted
  static constexpr Register standard = 0, flags = 0;
  static Register read() { return standard; }
  static void write(Register) {}
#endif
  static constexpr bool differs(Register r) { return ((r ^ standard) & ~flags) != 0; }

  Register old_;
};

}  // namespace mend::kernel
