#include <mend/store/json.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

//! Any text is read or refused; what is read is written and read again to the same value.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using mend::store::Json;
  std::string_view text{reinterpret_cast<const char*>(data), size};
  try {
    Json json = Json::parse(text, "the text", "file");
    if (Json::parse(json.text(), "the text", "file") != json) __builtin_trap();
  } catch (const mend::FileError&) {
  }
  return 0;
}
