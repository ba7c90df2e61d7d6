#pragma once

#include "mend/core/policy.hpp"
#include "mend/trace/recorder.hpp"

namespace mend {

//! What this rank does goes to a recorder, which must outlive the session: step, reduce, update,
//! commit and recovery with their durations, transfers with their bytes.
class Traced {
 public:
  using kind = mend::kind::trace;

  explicit Traced(trace::Recorder& recorder) : recorder_{&recorder} {}
  explicit Traced(trace::Recorder&&) = delete;  // it would be gone before the first step

  [[nodiscard]] trace::Recorder& recorder() const { return *recorder_; }

 private:
  trace::Recorder* recorder_;
};

}  // namespace mend
