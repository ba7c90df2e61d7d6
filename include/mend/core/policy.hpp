#pragma once

#include <concepts>

#include "mend/config.hpp"

namespace mend {

//! What a policy is about; a session takes several of recovery, at most one of undo, reduction and
//! clip.
namespace kind {
struct recovery {};   //!< where lost state comes from
struct reduction {};  //!< how gradients of the ranks become one
struct undo {};       //!< how a half-done update is made whole
struct schedule {};   //!< when background work runs
struct device {};     //!< where the trainer's memory and order of work are
struct clip {};       //!< bounds on what the update sees
struct sharding {};   //!< who keeps which part of the optimizer's state
struct check {};      //!< what makes a step not count
struct trace {};      //!< who is told what happens
}  // namespace kind

//! A small value that is given to a session after its communicator and says what it is by `kind`.
template <class P>
concept Policy = requires {
  typename P::kind;
};

//! A policy of kind K: `Is<SnapshotUndo, kind::undo>`.
template <class P, class K>
concept Is = Policy<P> && std::derived_from<typename P::kind, K>;

}  // namespace mend
