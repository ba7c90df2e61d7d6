#include <mend/core/hash.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

using mend::Bytes;
using mend::ByteView;
using mend::DType;
using mend::Hash128;
using mend::hash_bytes;
using mend::hash_range;
using mend::HashSum;
using mend::StateHash;

namespace {

ByteView view(std::string_view text) { return std::as_bytes(std::span{text}); }

Bytes random_bytes(std::size_t size, std::uint64_t seed = 1) {
  std::mt19937_64 random{seed};
  Bytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace

TEST_CASE("hashes equal those of an independent implementation") {
  CHECK(hash_bytes({}).to_hex() == "b5eebb18f6646b7e9b1f81f46d956fef");
  CHECK(hash_bytes({}, 1).to_hex() == "5f9e9d7e2798cc9dcd2d49c921fceca1");
  CHECK(hash_bytes(view("mend")).to_hex() == "fbc14d1ddeac0be9191eae20a6c2ccc5");
  CHECK(hash_bytes(view("mend"), 7).to_hex() == "5348647013f6840dfd30534b7a03c8f6");
  Bytes bytes(1003);
  for (unsigned i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i + 3 * i);
  CHECK(hash_bytes(bytes).to_hex() == "b0fc902d4e92d998dab1abc2d0e006e9");
  StateHash state;
  state.add("w", DType::f32, view("abcdefgh"));
  state.add("b", DType::f64, ByteView{});
  CHECK(state.value().to_hex() == "d1d5021f31781020b83b7a17c6b81b53");
}

TEST_CASE("digits of a hash: hi first") {
  CHECK(Hash128{0x0123456789abcdef, 0xfedcba9876543210}.to_hex() ==
        "fedcba98765432100123456789abcdef");
}

TEST_CASE("every flip of one bit, and every pair of flips in a word, gives another hash") {
  Bytes bytes = random_bytes(61);
  std::set<std::string> seen{hash_bytes(bytes).to_hex()};
  auto flip = [&](std::size_t bit) { bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8); };
  std::size_t bits = 8 * bytes.size(), expected = 1;
  for (std::size_t i = 0; i < bits; ++i) {
    flip(i);
    seen.insert(hash_bytes(bytes).to_hex());
    ++expected;
    for (std::size_t j = i + 1; j < std::min(bits, (i / 64 + 1) * 64); ++j) {
      flip(j);
      seen.insert(hash_bytes(bytes).to_hex());
      ++expected;
      flip(j);
    }
    flip(i);
  }
  CHECK(seen.size() == expected);
}

TEST_CASE("one bit of input changes about half of the bits of the hash") {
  Bytes bytes = random_bytes(64);
  Hash128 before = hash_bytes(bytes);
  for (std::size_t i = 0; i < 8 * bytes.size(); ++i) {
    bytes[i / 8] ^= static_cast<std::byte>(1u << i % 8);
    Hash128 after = hash_bytes(bytes);
    int changed = std::popcount(before.lo ^ after.lo) + std::popcount(before.hi ^ after.hi);
    CHECK(changed > 28);  // 64 is expected; 36 away is more than 6 standard deviations
    CHECK(changed < 100);
    bytes[i / 8] ^= static_cast<std::byte>(1u << i % 8);
  }
}

TEST_CASE("patterns that cancel in a plain sum do not cancel") {
  // Moved, swapped and mirrored words; second differences; a constant added everywhere.
  std::vector<std::uint64_t> words(512);
  std::mt19937_64 random{5};
  for (auto& w : words) w = random() & 0x000fffff000fffff;
  std::set<std::string> seen;
  std::size_t expected = 0;
  auto note = [&](const std::vector<std::uint64_t>& w) {
    seen.insert(hash_bytes(std::as_bytes(std::span{w})).to_hex());
    ++expected;
  };
  note(words);
  for (std::size_t i = 0; i + 3 < words.size(); ++i) {
    auto w = words;
    std::swap(w[i], w[i + 1]);
    note(w);
    w = words;
    w[i] += 1, w[i + 1] -= 2, w[i + 2] += 1;
    note(w);
    w = words;
    w[i] += 1, w[i + 1] -= 1, w[i + 2] -= 1, w[i + 3] += 1;
    note(w);
    w = words;
    std::rotate(w.begin(), w.begin() + static_cast<std::ptrdiff_t>(i) + 1, w.end());
    note(w);
    w = words;
    for (auto& x : w) x += i + 1;
    note(w);
    w = words;
    w[i] = w[i] << 32 | w[i] >> 32;
    note(w);
  }
  CHECK(seen.size() == expected);
}

TEST_CASE("zeros appended, and zeros alone, change the hash with their number") {
  std::set<std::string> seen;
  for (std::size_t n = 0; n <= 200; ++n) {
    Bytes zeros(n), text{std::byte{'a'}};
    text.resize(1 + n);
    seen.insert(hash_bytes(zeros).to_hex());
    seen.insert(hash_bytes(text).to_hex());
  }
  CHECK(seen.size() == 402);
}

TEST_CASE("the seed changes the hash") {
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < 1000; ++seed)
    seen.insert(hash_bytes(view("x"), seed).to_hex());
  CHECK(seen.size() == 1000);
}

TEST_CASE("parts add up to the whole at every cut, in any order") {
  Bytes bytes = random_bytes(301);
  ByteView whole = bytes;
  HashSum sum = hash_range(whole);
  for (std::size_t cut = 0; cut <= bytes.size(); cut += 8) {
    HashSum back = hash_range(whole.subspan(cut), cut);
    back += hash_range(whole.first(cut));
    CHECK(back == sum);
  }
  HashSum stripes;  // as 7 threads would, each taking every 7th block of 16 bytes
  for (std::size_t thread = 7; thread-- > 0;)
    for (std::size_t at = 16 * thread; at < bytes.size(); at += 16 * 7)
      stripes += hash_range(whole.subspan(at, std::min<std::size_t>(16, bytes.size() - at)), at);
  CHECK(stripes == sum);
  CHECK(mend::finish(stripes, bytes.size(), 3) == hash_bytes(bytes, 3));
}

TEST_CASE("the same slice elsewhere in a tensor has another sum") {
  Bytes bytes(64, std::byte{7});
  CHECK(hash_range(bytes, 0) != hash_range(bytes, 8));
  CHECK(hash_range(bytes, 0) != hash_range(bytes, std::uint64_t{1} << 35));
}

TEST_CASE("scalar and SIMD paths give the same bits, wherever they start") {
  Bytes bytes = random_bytes(8 * 1024);
  for (std::uint64_t index : {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{1} << 29,
                              (std::uint64_t{1} << 32) - 5, std::uint64_t{1} << 40}) {
    for (std::size_t words : {0, 8, 16, 40, 1024}) {
      HashSum scalar = mend::detail::hash_words_scalar(bytes.data(), words, index);
#if defined(__x86_64__)
      if (__builtin_cpu_supports("avx2"))
        CHECK(mend::detail::hash_words_avx2(bytes.data(), words, index) == scalar);
      if (__builtin_cpu_supports("avx512f"))
        CHECK(mend::detail::hash_words_avx512(bytes.data(), words, index) == scalar);
#endif
      CHECK(hash_range(ByteView{bytes}.first(8 * words), 8 * index) == scalar);
    }
  }
}

TEST_CASE("every length equals the definition, word by word") {
  Bytes bytes = random_bytes(160);
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    HashSum sum;
    for (std::size_t at = 0; at < size; at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(8, size - at));
      sum.add(word, at / 8);
    }
    CHECK(hash_range(ByteView{bytes}.first(size)) == sum);
  }
}

TEST_CASE("the address does not matter") {
  Bytes bytes = random_bytes(777), room(777 + 64);
  Hash128 expected = hash_bytes(bytes);
  for (std::size_t shift = 0; shift < 64; ++shift) {
    std::ranges::copy(bytes, room.begin() + static_cast<std::ptrdiff_t>(shift));
    CHECK(hash_bytes(ByteView{room}.subspan(shift, bytes.size())) == expected);
  }
}

TEST_CASE("a state's hash depends on names, types, contents, order and number") {
  auto hash = [](auto... fill) {
    StateHash state;
    (fill(state), ...);
    return state.value().to_hex();
  };
  auto add = [](std::string_view name, DType type, std::string_view text) {
    return [=](StateHash& s) { s.add(name, type, view(text)); };
  };
  std::set<std::string> seen{
      hash(),
      hash(add("a", DType::f32, "1234"), add("b", DType::f32, "5678")),
      hash(add("b", DType::f32, "5678"), add("a", DType::f32, "1234")),
      hash(add("a", DType::f32, "5678"), add("b", DType::f32, "1234")),
      hash(add("a", DType::i32, "1234"), add("b", DType::f32, "5678")),
      hash(add("a", DType::f32, "1234")),
      hash(add("a1", DType::f32, "234")),
      hash(add("", DType::f32, "a1234")),
      hash(add("a", DType::f32, "")),
      hash(add("", DType::f32, "")),
      hash(add("a", DType::f32, "1234"), add("b", DType::f32, "5678"), add("", DType::f32, "")),
  };
  CHECK(seen.size() == 11);
}

TEST_CASE("a hash computed elsewhere joins like the bytes themselves") {
  StateHash here, there;
  here.add("w", DType::bf16, view("abcd"));
  there.add("w", DType::bf16, hash_bytes(view("abcd")));
  CHECK(here.value() == there.value());
  Hash128 x = hash_bytes(view("x")), y = hash_bytes(view("y"));
  StateHash xy, yx, x2;
  xy.add(x), xy.add(y), yx.add(y), yx.add(x), x2.add(x), x2.add(x);
  CHECK(xy.value() != yx.value());
  CHECK(x2.value() != Hash128{});
}
