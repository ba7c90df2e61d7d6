#include <mend/comm/wire.hpp>

#include <sys/socket.h>

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <string>

#include "mend/comm/socket.hpp"

using namespace mend;
using namespace mend::comm;
using Status = wire::FrameReader::Status;

namespace {

struct Line {
  Line() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    in = Descriptor{ends[0]};
    out = Descriptor{ends[1]};
  }
  void send(ByteView bytes) {
    REQUIRE(::send(out.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  }
  Status next(std::uint64_t limit = 1 << 20) {
    return reader.next(in.get(), limit, [this](std::size_t size) {
      ++stored;
      return Payload{size};
    });
  }

  Descriptor in, out;
  wire::FrameReader reader;
  int stored = 0;
};

Bytes frame(std::size_t size, std::uint32_t tag) {
  wire::Prefix p{.length = size, .header = {.kind = 64, .tag = tag}};
  ByteWriter w;
  w.put(p);
  for (std::size_t i = 0; i < size; ++i) w.put(static_cast<std::byte>(i * 7 + tag));
  return std::move(w).take();
}
bool holds(const Payload& p, std::uint32_t tag) {
  for (std::size_t i = 0; i < p.size(); ++i)
    if (p.data()[i] != static_cast<std::byte>(i * 7 + tag)) return false;
  return true;
}

}  // namespace

TEST_CASE("a frame's prefix is these bytes") {
  wire::Prefix p{.length = 0x0102030405060708,
                 .header = {.kind = 0x1112,
                            .flags = 0x2122,
                            .generation = 0x31323334,
                            .step = 0x4142434445464748,
                            .tag = 0x51525354,
                            .part = 0x61626364,
                            .offset = 0x7172737475767778}};
  const unsigned char expected[] = {'m',  'e',  'n',  'd',  1,    0,    0,    0,    0x08, 0x07,
                                    0x06, 0x05, 0x04, 0x03, 0x02, 0x01, 0x12, 0x11, 0x22, 0x21,
                                    0x34, 0x33, 0x32, 0x31, 0x48, 0x47, 0x46, 0x45, 0x44, 0x43,
                                    0x42, 0x41, 0x54, 0x53, 0x52, 0x51, 0x64, 0x63, 0x62, 0x61,
                                    0x78, 0x77, 0x76, 0x75, 0x74, 0x73, 0x72, 0x71};
  CHECK(sizeof expected == sizeof p);
  CHECK(std::memcmp(&p, expected, sizeof p) == 0);
}

TEST_CASE("a greeting knows the token, whole and nothing else") {
  wire::Hello h = wire::Hello::make("secret", Generation{3}, 4, 5);
  CHECK(h.ours());
  CHECK(h.version.view() == library_version);
  CHECK(h.knows("secret"));
  for (const char* other : {"", "secre", "secret!", "Secret", "secreT"}) CHECK(!h.knows(other));
  std::string with_zero{"secret\0", 7}, longest(wire::token_limit, 'x');
  CHECK(!h.knows(with_zero));
  CHECK(wire::Hello::make(longest, {}, 1, 2).knows(longest));
  CHECK(!h.knows(longest + "x"));
  CHECK_THROWS_AS(wire::Hello::make(longest + "x", {}, 1, 2), OptionError);
  h.token_size = 0xffffffff;
  CHECK(!h.knows("secret"));
}

TEST_CASE("frames arrive whole, however they are cut") {
  std::array<std::size_t, 6> sizes{0, 1, 47, 48, 5000, 0};
  Bytes all;
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    Bytes f = frame(sizes[i], i);
    all.insert(all.end(), f.begin(), f.end());
  }
  for (std::size_t cut :
       {std::size_t{1}, std::size_t{7}, std::size_t{48}, std::size_t{49}, all.size()}) {
    CAPTURE(cut);
    Line line;
    std::uint32_t got = 0;
    for (std::size_t at = 0; at < all.size(); at += cut) {
      line.send({all.data() + at, std::min(cut, all.size() - at)});
      Status s;
      while ((s = line.next()) == Status::frame) {
        CHECK(line.reader.header().tag == got);
        Payload p = line.reader.take();
        CHECK(p.size() == sizes[got]);
        CHECK(holds(p, got));
        ++got;
      }
      REQUIRE(s == Status::later);
    }
    CHECK(got == sizes.size());
    CHECK(line.reader.bytes() == all.size());
    line.out.close();
    CHECK(line.next() == Status::ended);
  }
}

TEST_CASE("garbage and over-long frames are refused before memory is taken") {
  wire::Prefix good{.length = 10, .header = {.kind = 64}};
  auto refused = [](wire::Prefix p, std::uint64_t limit) {
    Line line;
    line.send(wire::bytes_of(p));
    CHECK(line.next(limit) == Status::garbage);
    CHECK(line.next(limit) == Status::garbage);  // and stays so
    CHECK(line.stored == 0);
  };
  wire::Prefix p = good;
  p.magic ^= 1;
  refused(p, 100);
  p = good;
  p.protocol = 2;
  refused(p, 100);
  p = good;
  p.reserved = 1;
  refused(p, 100);
  refused(good, 9);
  p = good;
  p.length = UINT64_MAX;
  refused(p, wire::peer_limit);
  Line line;
  line.send(wire::bytes_of(good));
  CHECK(line.next(10) == Status::later);
  CHECK(line.stored == 1);
  line.out.close();
  CHECK(line.next(10) == Status::ended);  // in the middle of a frame
}
