#pragma once

// Runs a CUDA kernel on the CPU: one fiber per thread, one block after the other. A fiber runs
// until it meets a barrier or a warp operation; when all have stopped, what is complete goes on.
// Threads and blocks are taken in ascending and, every other launch, in descending order, so that a
// kernel that lacks a barrier gives other results. No races are detected beyond that.

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define EMULATOR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATOR_ASAN 1
#endif
#endif
#if defined(EMULATOR_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x{x_}, y{y_}, z{z_} {}
};

// What kernels know about themselves.
inline thread_local uint3 threadIdx{}, blockIdx{};
inline thread_local dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace emulator {

//! A kernel did what a device answers with garbage, a hang or nothing at all.
struct KernelError : std::logic_error {
  using std::logic_error::logic_error;
};

struct Site {
  const char* operation = "";
  const char* file = "";
  int line = 0;
  friend bool operator==(const Site& a, const Site& b) {
    return a.operation == b.operation && a.line == b.line && std::string{a.file} == b.file;
  }
  [[nodiscard]] std::string text() const {
    return std::string{operation} + " (" + file + ":" + std::to_string(line) + ")";
  }
};

//! What the lanes of a warp operation bring, and take away.
struct Lane {
  std::uint64_t value = 0;
  int from = 0;  //!< a shuffle: the lane whose value this one gets; -1: a vote
  std::uint64_t result = 0;
};

class Machine {
 public:
  static Machine& get() {
    static thread_local Machine machine;
    return machine;
  }

  void run(dim3 grid, dim3 block, const std::function<void()>& kernel) {
    const unsigned count = block.x * block.y * block.z;
    if (count == 0 || count > 1024) throw KernelError{"a block of " + std::to_string(count)};
    backward_ = !backward_;
    kernel_ = &kernel;
    gridDim = grid;
    blockDim = block;
    const std::size_t blocks = std::size_t{grid.x} * grid.y * grid.z;
    for (std::size_t i = 0; i < blocks; ++i) {
      const std::size_t b = backward_ ? blocks - 1 - i : i;
      blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                  static_cast<unsigned>(b / grid.x / grid.y)};
      run_block(count);
    }
  }

  //! From a kernel: waits for the whole block.
  void block_barrier(Site site) {
    Fiber& me = *current_;
    me.site = site;
    me.state = State::at_barrier;
    leave();
  }
  //! From a kernel: waits for the lanes of the mask; from: see Lane. Returns what the lane gets.
  std::uint64_t warp(Site site, unsigned mask, std::uint64_t value, int from) {
    Fiber& me = *current_;
    if ((mask >> lane_of(me) & 1) == 0)
      throw_later("thread " + std::to_string(me.index) + " is not in its own mask in " +
                  site.text());
    me.site = site;
    me.mask = mask;
    me.lane = {value, from, 0};
    me.state = State::at_warp;
    leave();
    return me.lane.result;
  }
  [[nodiscard]] unsigned active_mask() const {
    unsigned mask = 0;
    for (const Fiber& f : fibers_of_block())
      if (f.index / 32 == current_->index / 32 && f.state != State::done) mask |= 1u << lane_of(f);
    return mask;
  }
  [[nodiscard]] unsigned lane() const { return lane_of(*current_); }

 private:
  enum class State { ready, at_barrier, at_warp, done };
  struct Fiber {
    unsigned index = 0;
    State state = State::ready;
    Site site;
    unsigned mask = 0;
    Lane lane;
    ucontext_t context{};
    std::unique_ptr<char[]> stack;
    void* fake_stack = nullptr;
  };
  static constexpr std::size_t stack_size = 64 << 10;

  static unsigned lane_of(const Fiber& f) { return f.index % 32; }
  struct Range {
    const Fiber *first, *last;
    [[nodiscard]] const Fiber* begin() const { return first; }
    [[nodiscard]] const Fiber* end() const { return last; }
  };
  [[nodiscard]] Range fibers_of_block() const { return {fibers_.data(), fibers_.data() + count_}; }

  static void prepare(Fiber& f) {
    f.state = State::ready;
    if (f.stack == nullptr) f.stack = std::make_unique<char[]>(stack_size);
    ::getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = stack_size;
    f.context.uc_link = nullptr;
    f.fake_stack = nullptr;
    ::makecontext(&f.context, &Machine::fiber_main, 0);
  }
  void run_block(unsigned count) {
    count_ = count;
    if (fibers_.size() < count) fibers_.resize(count);
    for (unsigned i = 0; i < count; ++i) {
      Fiber& f = fibers_[i];
      f.index = i;
      prepare(f);
    }
    for (;;) {
      bool all_done = true;
      for (unsigned i = 0; i < count; ++i) {
        Fiber& f = fibers_[backward_ ? count - 1 - i : i];
        if (f.state == State::ready) enter(f);
        all_done = all_done && f.state == State::done;
      }
      if (!error_.empty()) throw KernelError{std::exchange(error_, {})};
      if (all_done) return;
      if (!release_warps() && !release_barrier()) throw KernelError{stuck()};
    }
  }

  bool release_warps() {
    bool released = false;
    for (unsigned first = 0; first < count_; first += 32)
      for (unsigned i = first; i < std::min(first + 32, count_); ++i)
        if (fibers_[i].state == State::at_warp && complete(first, fibers_[i])) {
          release(first, fibers_[i].mask);
          released = true;
        }
    return released;
  }
  bool complete(unsigned first, const Fiber& of) const {
    for (unsigned l = 0; l < 32; ++l) {
      if ((of.mask >> l & 1) == 0) continue;
      if (first + l >= count_) return false;
      const Fiber& f = fibers_[first + l];
      if (f.state != State::at_warp || f.mask != of.mask || !(f.site == of.site)) return false;
    }
    return true;
  }
  void release(unsigned first, unsigned mask) {
    std::uint64_t ballot = 0;
    for (unsigned l = 0; l < 32; ++l)
      if ((mask >> l & 1) != 0 && fibers_[first + l].lane.value != 0) ballot |= 1u << l;
    for (unsigned l = 0; l < 32; ++l) {
      if ((mask >> l & 1) == 0) continue;
      Fiber& f = fibers_[first + l];
      if (f.lane.from < 0) {
        f.lane.result = ballot;
      } else {
        if ((mask >> f.lane.from & 1) == 0)
          throw KernelError{"a shuffle reads a lane outside its mask in " + f.site.text()};
        f.lane.result = fibers_[first + static_cast<unsigned>(f.lane.from)].lane.value;
      }
      f.state = State::ready;
    }
  }
  bool release_barrier() {
    for (const Fiber& f : fibers_of_block())
      if (f.state != State::at_barrier || !(f.site == fibers_[0].site)) return false;
    for (unsigned i = 0; i < count_; ++i) fibers_[i].state = State::ready;
    return true;
  }
  [[nodiscard]] std::string stuck() const {
    const auto where = [](const Fiber& f) {
      return "thread " + std::to_string(f.index) +
             (f.state == State::done ? " has ended" : " waits in " + f.site.text());
    };
    const Fiber* odd = nullptr;
    for (const Fiber& f : fibers_of_block())
      if (odd == nullptr && (f.state != fibers_[0].state || !(f.site == fibers_[0].site))) odd = &f;
    return "divergent: " + where(fibers_[0]) + (odd == nullptr ? "" : ", " + where(*odd)) +
           ", block " + std::to_string(blockIdx.x);
  }

  void enter(Fiber& f) {
    current_ = &f;
    threadIdx = {f.index % blockDim.x, f.index / blockDim.x % blockDim.y,
                 f.index / blockDim.x / blockDim.y};
#if defined(EMULATOR_ASAN)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, f.stack.get(), stack_size);
#endif
    ::swapcontext(&scheduler_, &f.context);
#if defined(EMULATOR_ASAN)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    current_ = nullptr;
  }
  void leave() {
    Fiber& me = *current_;
    const bool last = me.state == State::done;
#if defined(EMULATOR_ASAN)
    __sanitizer_start_switch_fiber(last ? nullptr : &me.fake_stack, scheduler_stack_,
                                   scheduler_stack_size_);
#endif
    if (last)
      ::setcontext(&scheduler_);
    else
      ::swapcontext(&me.context, &scheduler_);
#if defined(EMULATOR_ASAN)
    __sanitizer_finish_switch_fiber(me.fake_stack, &scheduler_stack_, &scheduler_stack_size_);
#endif
  }
  static void fiber_main() {
    Machine& machine = get();
#if defined(EMULATOR_ASAN)
    __sanitizer_finish_switch_fiber(nullptr, &machine.scheduler_stack_,
                                    &machine.scheduler_stack_size_);
#endif
    (*machine.kernel_)();
    machine.current_->state = State::done;
    machine.leave();
  }
  void throw_later(std::string message) {
    if (error_.empty()) error_ = std::move(message);
  }

  std::vector<Fiber> fibers_;
  unsigned count_ = 0;
  bool backward_ = true;
  const std::function<void()>* kernel_ = nullptr;
  Fiber* current_ = nullptr;
  ucontext_t scheduler_{};
#if defined(EMULATOR_ASAN)
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_size_ = 0;
#endif
  std::string error_;
};

}  // namespace emulator
