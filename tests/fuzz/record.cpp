#include <mend/store/record.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

//! Any bytes are read up to the first torn one, as they are and with checksums that fit, which
//! chance would never find; payloads are no larger than the whole.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using mend::store::RecordFrame;
  auto read = [size](mend::ByteView bytes) {
    mend::store::RecordReader reader{"segment", bytes};
    while (auto payload = reader.next())
      if (payload->size() > size) __builtin_trap();
    if (reader.end() > size || (reader.end() != size && reader.why_torn().empty()))
      __builtin_trap();
  };
  mend::Bytes bytes(size);
  if (size != 0) std::memcpy(bytes.data(), data, size);
  read(bytes);
  for (std::size_t at = 0; size - at >= sizeof(RecordFrame);) {
    RecordFrame frame;
    std::memcpy(&frame, bytes.data() + at, sizeof frame);
    std::size_t rest = size - at - sizeof frame;
    if (frame.length > rest) break;
    mend::ByteView payload{bytes.data() + at + sizeof frame, frame.length};
    frame.checksum = frame.hash_with(payload, RecordFrame::seed_of("segment"));
    std::memcpy(bytes.data() + at, &frame, sizeof frame);
    at += sizeof frame + frame.length;
  }
  read(bytes);
  return 0;
}
