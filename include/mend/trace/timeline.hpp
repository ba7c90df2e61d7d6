#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "mend/core/atomic_file.hpp"
#include "mend/core/file_system.hpp"
#include "mend/core/text.hpp"
#include "mend/trace/event.hpp"

namespace mend::trace {

namespace detail {

//! Microseconds with three decimals, exactly.
inline std::string microseconds(Time time) {
  std::int64_t ns = time.count();
  std::string fraction = std::to_string(std::abs(ns % 1000));
  return (ns < 0 && ns > -1000 ? "-" : "") + std::to_string(ns / 1000) + "." +
         std::string(3 - fraction.size(), '0') + fraction;
}

}  // namespace detail

//! Events in the Chrome trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing show:
//! a process per rank, in it a row per kind, so that work that overlaps stays readable.
//! Source: the "Trace Event Format" document of the Chromium project.
[[nodiscard]] inline std::string timeline_json(std::span<const Event> events) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  std::string_view separator = "\n";
  auto open = [&](std::string_view name, std::string_view phase, int rank, EventKind kind) {
    out += std::exchange(separator, ",\n");
    out += "{\"name\":";
    append_json(out, name);
    out += ",\"ph\":\"";
    out += phase;
    out +=
        "\",\"pid\":" + std::to_string(rank) + ",\"tid\":" + std::to_string(static_cast<int>(kind));
  };
  std::set<std::pair<int, EventKind>> rows;
  for (const Event& e : events) {
    int rank = e.rank;
    if (rows.emplace(rank, e.kind).second) {
      open("process_name", "M", rank, e.kind);
      out += ",\"args\":{\"name\":\"rank " + std::to_string(rank) + "\"}}";
      open("thread_name", "M", rank, e.kind);
      out += ",\"args\":{\"name\":";
      append_json(out, name_of(e.kind));
      out += "}}";
    }
    bool moment = e.duration <= Time{};
    open(e.label(), moment ? "i" : "X", rank, e.kind);
    out += ",\"cat\":";
    append_json(out, name_of(e.kind));
    out += ",\"ts\":" + detail::microseconds(e.time);
    out += moment ? ",\"s\":\"p\"" : ",\"dur\":" + detail::microseconds(e.duration);
    out += ",\"args\":{\"step\":" + std::to_string(e.step.value()) +
           ",\"generation\":" + std::to_string(e.generation.value());
    if (e.bytes != ByteCount{}) out += ",\"bytes\":" + std::to_string(e.bytes.value());
    if (!e.text.empty()) {
      out += ",\"text\":";
      append_json(out, e.text);
    }
    out += "}}";
  }
  return out + "\n]}\n";
}

//! Writes timeline_json to a file, which appears whole or not at all. Throws FileError.
inline void write_timeline(const std::string& path, std::span<const Event> events) {
  PosixFileSystem files;
  AtomicFile file{files, path};
  file.write(std::string_view{timeline_json(events)});
  file.publish();
}

}  // namespace mend::trace
