#include <mend/store/safetensors_header.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

//! Any header is read or refused; what is read is written and read again to the same text.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using mend::store::SafetensorsHeader;
  if (size == 0) return 0;
  std::uint64_t data_size = data[0];  // of what would follow the header
  std::string_view text{reinterpret_cast<const char*>(data) + 1, size - 1};
  try {
    SafetensorsHeader header = SafetensorsHeader::parse(text, data_size, "file");
    std::string written = header.text();
    if (SafetensorsHeader::parse(written, data_size, "file").text() != written) __builtin_trap();
  } catch (const mend::FileError&) {
  }
  return 0;
}
