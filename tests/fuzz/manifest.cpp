#include <mend/store/manifest.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

//! Any text is read or refused, with the checksum that it has and with the one that it should have:
//! chance would never find that one. What is read is written and read again to an equal manifest.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using mend::store::Manifest;
  auto read = [](const std::string& text) {
    try {
      Manifest m = Manifest::parse(text, "file");
      if (Manifest::parse(m.text(), "file") != m) __builtin_trap();
    } catch (const mend::FileError&) {
    }
  };
  std::string text{reinterpret_cast<const char*>(data), size};
  read(text);
  if (size < 64) return 0;
  text.replace(size - 36, 32, mend::store::detail::manifest_checksum(text));
  read(text);
  return 0;
}
