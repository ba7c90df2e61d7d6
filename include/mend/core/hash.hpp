#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "mend/config.hpp"
#include "mend/core/bytes.hpp"
#include "mend/core/dtype.hpp"

namespace mend {

static_assert(std::endian::native == std::endian::little,
              "mend stores, sends and hashes little-endian words");

//! 128 bits that stand for some bytes. Two independent sums of 64 bits each: chance collisions have
//! a probability near 2^-64. Finds errors and divergence; it is no defence against forgery.
struct Hash128 {
  std::uint64_t lo = 0, hi = 0;

  friend constexpr bool operator==(const Hash128&, const Hash128&) = default;

  //! 32 digits, hi first.
  [[nodiscard]] std::string to_hex() const {
    std::string text(32, '0');
    for (unsigned i = 0; i < 32; ++i)
      text[i] = "0123456789abcdef"[((i < 16 ? hi : lo) >> (60 - i % 16 * 4)) & 15];
    return text;
  }
};

//! What some of a tensor's 8-byte words add to its hash. Sums of disjoint parts add up to the sum
//! of the whole, in any order and any split: over threads, SIMD lanes, GPU blocks.
//!
//! Word w at index i adds (lo(w) + lo(k)) * (hi(w) + hi(k)) mod 2^64, for both keys k of i: the
//! inner sums mod 2^32 (NH: Black, Halevi, Krawczyk, Krovetz, Rogaway, "UMAC", CRYPTO '99).
struct HashSum {
  std::uint64_t a = 0, b = 0;

  MEND_RULE constexpr HashSum& operator+=(const HashSum& other) {
    a += other.a;
    b += other.b;
    return *this;
  }
  friend constexpr bool operator==(const HashSum&, const HashSum&) = default;

  //! Adds the word at an index: the definition, which every faster path must equal.
  MEND_RULE constexpr void add(std::uint64_t word, std::uint64_t index) {
    a += product(word, key(index * step_a + start_a));
    b += product(word, key(index * step_b + start_b));
  }

  // Odd multipliers and arbitrary starts (digits of the golden ratio, of pi and of sqrt 3).
  static constexpr std::uint64_t step_a = 0x9e3779b97f4a7c15, start_a = 0x243f6a8885a308d3;
  static constexpr std::uint64_t step_b = 0xbb67ae8584caa73b, start_b = 0x13198a2e03707344;

 private:
  //! A counter becomes a key by two products of its halves. One is not enough: neighbours' keys
  //! would still be related, and patterns in the data could cancel.
  MEND_RULE static constexpr std::uint64_t key(std::uint64_t x) {
    std::uint64_t p = (x & 0xffffffff) * (x >> 32);
    x ^= p << 40 | p >> 24;
    p = (x & 0xffffffff) * (x >> 32);
    return x ^ (p << 24 | p >> 40);
  }
  MEND_RULE static constexpr std::uint64_t product(std::uint64_t word, std::uint64_t k) {
    std::uint64_t low = (word + k) & 0xffffffff;
    std::uint64_t high = ((word >> 32) + (k >> 32)) & 0xffffffff;
    return low * high;
  }
};

namespace detail {

inline HashSum hash_words_scalar(const std::byte* data, std::size_t words, std::uint64_t index) {
  HashSum sum;
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t word;
    std::memcpy(&word, data + 8 * i, 8);
    sum.add(word, index + i);
  }
  return sum;
}

#if defined(__x86_64__)
// Each lane takes one word of a block; `words` is a multiple of the lane count. Vector extensions
// and single instructions: <immintrin.h> alone takes a third of a second to parse.
inline constexpr std::size_t ahead = 2048;  // bytes; more in flight than the reorder buffer sees
inline void prefetch(const std::byte* at) { __builtin_prefetch(at + ahead, 0, 3); }

struct HashAvx2 {
  static constexpr std::size_t lanes = 4;
  typedef std::uint64_t Words __attribute__((vector_size(32)));
  typedef std::uint32_t Halves __attribute__((vector_size(32)));

  //! x becomes the product of its halves, in each word.
  __attribute__((target("avx2"))) static inline void multiply_halves(Words& x) {
    const Words high = x >> 32;
    asm("vpmuludq {%1, %0, %0|%0, %0, %1}" : "+x"(x) : "x"(high));
  }
  //! Moves the bytes of each 16 to the places that `where` says.
  __attribute__((target("avx2"))) static inline void shuffle(Words& x, const Words& where) {
    asm("vpshufb {%1, %0, %0|%0, %0, %1}" : "+x"(x) : "x"(where));
  }
};

__attribute__((target("avx2"))) inline HashSum hash_words_avx2(const std::byte* data,
                                                               std::size_t words,
                                                               std::uint64_t index) {
  using V = HashAvx2;
  V::Words xa, xb, sum_a{}, sum_b{};
  for (std::uint64_t i = 0; i < V::lanes; ++i) {
    xa[i] = (index + i) * HashSum::step_a + HashSum::start_a;
    xb[i] = (index + i) * HashSum::step_b + HashSum::start_b;
  }
  // Rotations of each word by 5 and by 3 bytes.
  const V::Words rotate_40{0x0201000706050403, 0x0a09080f0e0d0c0b, 0x0201000706050403,
                           0x0a09080f0e0d0c0b};
  const V::Words rotate_24{0x0403020100070605, 0x0c0b0a09080f0e0d, 0x0403020100070605,
                           0x0c0b0a09080f0e0d};
  for (std::size_t i = 0; i < words; i += V::lanes) {
    prefetch(data + 8 * i);
    V::Halves w;
    std::memcpy(&w, data + 8 * i, sizeof w);
    V::Words ka = xa, kb = xb, pa = xa, pb = xb;
    V::multiply_halves(pa);
    V::multiply_halves(pb);
    V::shuffle(pa, rotate_40);
    V::shuffle(pb, rotate_40);
    pa = ka ^= pa;
    pb = kb ^= pb;
    V::multiply_halves(pa);
    V::multiply_halves(pb);
    V::shuffle(pa, rotate_24);
    V::shuffle(pb, rotate_24);
    ka = V::Words(w + V::Halves(ka ^ pa));
    kb = V::Words(w + V::Halves(kb ^ pb));
    V::multiply_halves(ka);
    V::multiply_halves(kb);
    sum_a += ka;
    sum_b += kb;
    xa += V::lanes * HashSum::step_a;
    xb += V::lanes * HashSum::step_b;
  }
  HashSum sum;
  for (std::size_t i = 0; i < V::lanes; ++i) sum += {sum_a[i], sum_b[i]};
  return sum;
}

struct HashAvx512 {
  static constexpr std::size_t lanes = 8;
  typedef std::uint64_t Words __attribute__((vector_size(64)));
  typedef std::uint32_t Halves __attribute__((vector_size(64)));

  __attribute__((target("avx512f"))) static inline void multiply_halves(Words& x) {
    const Words high = x >> 32;
    asm("vpmuludq {%1, %0, %0|%0, %0, %1}" : "+v"(x) : "v"(high));
  }
  template <int bits>
  __attribute__((target("avx512f"))) static inline void rotate(Words& x) {
    asm("vprolq {%1, %0, %0|%0, %0, %1}" : "+v"(x) : "i"(bits));
  }
};

__attribute__((target("avx512f"))) inline HashSum hash_words_avx512(const std::byte* data,
                                                                    std::size_t words,
                                                                    std::uint64_t index) {
  using V = HashAvx512;
  V::Words xa, xb, sum_a{}, sum_b{};
  for (std::uint64_t i = 0; i < V::lanes; ++i) {
    xa[i] = (index + i) * HashSum::step_a + HashSum::start_a;
    xb[i] = (index + i) * HashSum::step_b + HashSum::start_b;
  }
  for (std::size_t i = 0; i < words; i += V::lanes) {
    prefetch(data + 8 * i);
    V::Halves w;
    std::memcpy(&w, data + 8 * i, sizeof w);
    V::Words ka = xa, kb = xb, pa = xa, pb = xb;
    V::multiply_halves(pa);
    V::multiply_halves(pb);
    V::rotate<40>(pa);
    V::rotate<40>(pb);
    pa = ka ^= pa;
    pb = kb ^= pb;
    V::multiply_halves(pa);
    V::multiply_halves(pb);
    V::rotate<24>(pa);
    V::rotate<24>(pb);
    ka = V::Words(w + V::Halves(ka ^ pa));
    kb = V::Words(w + V::Halves(kb ^ pb));
    V::multiply_halves(ka);
    V::multiply_halves(kb);
    sum_a += ka;
    sum_b += kb;
    xa += V::lanes * HashSum::step_a;
    xb += V::lanes * HashSum::step_b;
  }
  HashSum sum;
  for (std::size_t i = 0; i < V::lanes; ++i) sum += {sum_a[i], sum_b[i]};
  return sum;
}
#endif

//! Invertible, and every bit of x reaches every bit of the result (Stafford's variant 13 of the
//! MurmurHash3 finaliser).
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace detail

//! The sum of a part of a tensor that begins `offset` bytes into it; a multiple of 8. Only the part
//! that ends the tensor may have a size that is no multiple of 8: its last word is filled with
//! zeros. Any alignment. Blocks: no. Cost: one pass over memory, AVX-512 or AVX2 chosen at run
//! time.
[[nodiscard]] inline HashSum hash_range(ByteView bytes, std::uint64_t offset = 0) {
  const std::byte* data = bytes.data();
  std::size_t words = bytes.size() / 8, done = 0;
  std::uint64_t index = offset / 8;
  HashSum sum;
#if defined(__x86_64__)
  if (words >= 8 && __builtin_cpu_supports("avx512f")) {
    done = words & ~std::size_t{7};
    sum = detail::hash_words_avx512(data, done, index);
  } else if (words >= 4 && __builtin_cpu_supports("avx2")) {
    done = words & ~std::size_t{3};
    sum = detail::hash_words_avx2(data, done, index);
  }
#endif
  sum += detail::hash_words_scalar(data + 8 * done, words - done, index + done);
  if (std::size_t tail = bytes.size() % 8; tail != 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + 8 * words, tail);
    sum.add(word, index + words);
  }
  return sum;
}

//! The hash of `size` bytes whose words add up to `sum`.
[[nodiscard]] constexpr Hash128 finish(HashSum sum, std::uint64_t size, std::uint64_t seed = 0) {
  std::uint64_t x = sum.a ^ detail::mix(size + HashSum::step_a);
  std::uint64_t y = sum.b ^ detail::mix(seed + HashSum::step_b);
  x = detail::mix(x + y);  // each line can be undone, so that no two sums become one hash
  y = detail::mix(y + x);
  x = detail::mix(x + y);
  return {x, y + x};
}

//! The hash of a tensor's bytes; the same on every machine, in any split, on host and device.
[[nodiscard]] inline Hash128 hash_bytes(ByteView bytes, std::uint64_t seed = 0) {
  return finish(hash_range(bytes), bytes.size(), seed);
}

//! Joins hashes into one; their order, names and types count.
class StateHash {
 public:
  void add(Hash128 hash) { state_ = finish({state_.lo ^ hash.lo, state_.hi ^ hash.hi}, ++count_); }
  //! `data`: the hash_bytes of a tensor, wherever it was computed.
  void add(std::string_view name, DType type, Hash128 data) {
    add(hash_bytes(std::as_bytes(std::span{name}), static_cast<std::uint64_t>(type)));
    add(data);
  }
  void add(std::string_view name, DType type, ByteView bytes) {
    add(name, type, hash_bytes(bytes));
  }

  [[nodiscard]] Hash128 value() const { return state_; }

 private:
  Hash128 state_{};
  std::uint64_t count_ = 0;
};

}  // namespace mend
