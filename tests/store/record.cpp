#include <mend/store/record.hpp>

#include <doctest/doctest.h>
#include <mend/store/memory.hpp>

#include <cstring>
#include <string>
#include <vector>

using mend::Bytes;
using mend::ByteView;
using mend::FileError;
using mend::Memory;
using mend::store::RecordFrame;
using mend::store::RecordReader;
using mend::store::RecordWriter;

namespace {

Bytes payload(std::size_t size, unsigned seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + seed);
  return bytes;
}

//! Records of these sizes, as a segment of that name.
Bytes segment(const std::vector<std::size_t>& sizes, const std::string& name = "d/a.records") {
  Memory memory;
  RecordWriter writer{memory.append_new(name), name};
  for (std::size_t i = 0; i < sizes.size(); ++i)
    writer.append(payload(sizes[i], static_cast<unsigned>(i)));
  writer.sync();
  CHECK(writer.length() == memory.size(name));
  return mend::store::read_all(memory, name);
}

struct Outcome {
  std::vector<Bytes> payloads;
  std::uint64_t end;
  std::string why;
};
Outcome read(ByteView bytes, const std::string& name = "d/a.records") {
  RecordReader reader{name, bytes};
  Outcome outcome;
  while (auto next = reader.next()) outcome.payloads.emplace_back(next->begin(), next->end());
  CHECK(reader.count() == outcome.payloads.size());
  CHECK_FALSE(reader.next());  // it stays where it stopped
  outcome.end = reader.end();
  outcome.why = reader.why_torn();
  return outcome;
}

bool says(const Outcome& outcome, std::string_view part) {
  return outcome.why.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("records come back in order, whatever their size") {
  std::vector<std::size_t> sizes{0, 1, 7, 8, 9, 4096, 100'001};
  Outcome outcome = read(segment(sizes));
  REQUIRE(outcome.payloads.size() == sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i)
    CHECK(outcome.payloads[i] == payload(sizes[i], static_cast<unsigned>(i)));
  CHECK(outcome.why.empty());
  CHECK(read({}).why.empty());
  CHECK(read({}).payloads.empty());
}

TEST_CASE("the bytes are those of the format") {
  Bytes bytes = segment({3});
  REQUIRE(bytes.size() == 43);
  CHECK(std::memcmp(bytes.data(), "mendrec1\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24) == 0);
  Bytes covered(bytes.begin(), bytes.begin() + 24);
  covered.insert(covered.end(), bytes.begin() + 40, bytes.end());
  std::string_view name = "a.records";
  mend::Hash128 hash =
      mend::hash_bytes(covered, mend::hash_bytes(std::as_bytes(std::span{name})).lo);
  CHECK(std::memcmp(bytes.data() + 24, &hash.lo, 8) == 0);
  CHECK(std::memcmp(bytes.data() + 32, &hash.hi, 8) == 0);
}

TEST_CASE("every truncation is found, and what lies before it is read") {
  std::vector<std::size_t> sizes{5, 0, 32};
  std::vector<std::uint64_t> ends{45, 85, 157};
  Bytes whole = segment(sizes);
  REQUIRE(whole.size() == ends.back());
  for (std::size_t n = 0; n < whole.size(); ++n) {
    Outcome outcome = read(ByteView{whole}.first(n));
    std::size_t count = 0;
    while (ends[count] <= n) ++count;
    CHECK(outcome.payloads.size() == count);
    CHECK(outcome.end == (count == 0 ? 0 : ends[count - 1]));
    CHECK(outcome.why.empty() == (n == outcome.end));  // cut between two: only a length knows
    for (std::size_t i = 0; i < count; ++i)
      CHECK(outcome.payloads[i] == payload(sizes[i], static_cast<unsigned>(i)));
  }
}

TEST_CASE("every flip of any bits of a byte is found, in the record that holds it") {
  Bytes whole = segment({5, 0, 32});
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (unsigned flip = 1; flip < 256; ++flip) {
      Bytes bytes = whole;
      bytes[at] ^= static_cast<std::byte>(flip);
      RecordReader reader{"a.records", bytes};
      while (reader.next()) {
      }
      std::uint64_t before = at < 45 ? 0 : at < 85 ? 45 : 85;
      bool found = reader.end() == before && !reader.why_torn().empty();
      if (!found) CHECK_MESSAGE(found, "byte " << at << " flip " << flip);
    }
  }
}

TEST_CASE("what is torn is told with its place") {
  Bytes bytes = segment({5, 8});
  CHECK(says(read(ByteView{bytes}.first(50)), "torn at 45 of 50 bytes: the frame is cut short"));
  CHECK(says(read(ByteView{bytes}.first(90)), "torn at 45 of 90 bytes: the payload is cut short"));
  bytes[45] = {};
  CHECK(says(read(bytes), "torn at 45 of 93 bytes: no record begins here"));
  bytes = segment({5, 8});
  bytes.back() ^= std::byte{1};
  CHECK(says(read(bytes), "torn at 45 of 93 bytes: the checksum differs"));
}

TEST_CASE("records of another segment, another place or another order do not count") {
  Bytes a = segment({8, 8});
  CHECK(says(read(a, "d/b.records"), "torn at 0"));
  CHECK(read(a, "moved/a.records").payloads.size() == 2);
  Bytes swapped(a.begin() + 48, a.end());
  swapped.insert(swapped.end(), a.begin(), a.begin() + 48);
  CHECK(says(read(swapped), "record 1 stands where 0 belongs"));
  Bytes twice(a.begin(), a.begin() + 48);
  twice.insert(twice.end(), a.begin(), a.begin() + 48);
  CHECK(says(read(twice), "record 0 stands where 1 belongs"));
}

TEST_CASE("a hostile length allocates nothing") {
  for (std::uint64_t length : {std::uint64_t{9}, std::uint64_t{1} << 40, ~std::uint64_t{},
                               ~std::uint64_t{} - 39, ~std::uint64_t{} - 40}) {
    Bytes bytes = segment({8});
    std::memcpy(bytes.data() + 8, &length, 8);
    Outcome outcome = read(bytes);
    CHECK(says(outcome, "cut short"));
    CHECK(outcome.payloads.empty());
  }
}

TEST_CASE("a segment in a store is read as far as it is sealed") {
  Memory memory;
  RecordWriter writer{memory.append_new("d/a"), "d/a"};
  writer.append(payload(100, 1));
  std::uint64_t sealed = writer.length();
  writer.append(payload(200, 2));
  RecordReader all{memory, "d/a"}, part{memory, "d/a", sealed}, more{memory, "d/a", 10'000};
  CHECK(all.next()->size() == 100);
  CHECK(all.next()->size() == 200);
  CHECK_FALSE(all.next());
  CHECK(part.next()->size() == 100);
  CHECK_FALSE(part.next());
  CHECK(part.why_torn().empty());
  CHECK(more.next());
  memory.remove("d/a");
  CHECK_THROWS_AS((void)more.next(), FileError);
  CHECK_THROWS_AS(RecordReader(memory, "d/a"), FileError);
}
