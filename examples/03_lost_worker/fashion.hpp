#pragma once

// Reads Fashion-MNIST as Debian's package dataset-fashion-mnist installs it: gzipped IDX files,
// big-endian, 28 x 28 grey pixels and a label from 0 to 9.

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct Images {
  static constexpr std::size_t side = 28, pixels_each = side * side;
  std::vector<std::uint8_t> pixels;  // one image after the other, row-major
  std::vector<std::uint8_t> labels;
  std::size_t size() const { return labels.size(); }
};

namespace detail {

inline std::vector<std::uint8_t> read_idx(const std::string& path, std::uint32_t magic,
                                          std::size_t item) {
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file{gzopen(path.c_str(), "rb"), gzclose};
  if (!file)
    throw std::runtime_error{
        "cannot open " + path +
        "\ninstall the package dataset-fashion-mnist (sh cmake/install-deps.sh), "
        "or point --data to its files"};
  auto read = [&](void* to, std::size_t size) {
    for (auto* at = static_cast<std::uint8_t*>(to); size > 0;) {
      int n = gzread(file.get(), at, static_cast<unsigned>(std::min<std::size_t>(size, 1 << 24)));
      if (n <= 0)
        throw std::runtime_error{path +
                                 " ends early or is damaged; install dataset-fashion-mnist anew"};
      at += n;
      size -= static_cast<std::size_t>(n);
    }
  };
  auto number = [&] {
    std::array<std::uint8_t, 4> b{};
    read(b.data(), 4);
    return std::uint32_t{b[0]} << 24 | std::uint32_t{b[1]} << 16 | std::uint32_t{b[2]} << 8 | b[3];
  };
  if (number() != magic) throw std::runtime_error{path + " is not the IDX file that was expected"};
  std::size_t count = number();
  if (count == 0 || count > 1'000'000)
    throw std::runtime_error{path + " states an impossible number of items"};
  if (item > 1 && (number() != Images::side || number() != Images::side))
    throw std::runtime_error{path + " does not hold images of 28 x 28 pixels"};
  std::vector<std::uint8_t> data(count * item);
  read(data.data(), data.size());
  if (std::uint8_t more; gzread(file.get(), &more, 1) != 0)  // also has zlib compare the checksum
    throw std::runtime_error{path + " is too long or damaged; install dataset-fashion-mnist anew"};
  return data;
}

}  // namespace detail

// which: "train" (60,000) or "t10k" (10,000). Throws std::runtime_error with what to do about it.
inline Images read_fashion(const std::string& folder, const std::string& which) {
  Images images;
  images.pixels =
      detail::read_idx(folder + "/" + which + "-images-idx3-ubyte.gz", 0x803, Images::pixels_each);
  images.labels = detail::read_idx(folder + "/" + which + "-labels-idx1-ubyte.gz", 0x801, 1);
  if (images.pixels.size() != images.labels.size() * Images::pixels_each)
    throw std::runtime_error{folder + ": images and labels differ in number"};
  if (std::any_of(images.labels.begin(), images.labels.end(), [](std::uint8_t l) { return l > 9; }))
    throw std::runtime_error{folder +
                             ": a label is not from 0 to 9; install dataset-fashion-mnist anew"};
  return images;
}
