#pragma once

#include <concepts>
#include <cstddef>
#include <span>

#include "mend/comm/buffer.hpp"
#include "mend/core/bytes.hpp"

namespace mend::comm {

//! The least that a Session asks of the trainer's communicator.
//! Law 1: rank() and size() are constant within a generation. Law 2: agree(x) returns the same on
//! all members, true iff all said true. Law 3: every call ends, with success or an exception.
template <class C>
concept Communicator = requires(C& comm, const C& seen, bool yes) {
  { seen.rank() } -> std::convertible_to<int>;
  { seen.size() } -> std::convertible_to<int>;
  { comm.agree(yes) } -> std::convertible_to<bool>;
};

//! Law: on return every member holds the bytes of rank `root`.
template <class C>
concept CanBroadcast = Communicator<C> && requires(C& comm, std::span<std::byte> bytes, int root) {
  comm.broadcast(bytes, root);
};

//! Law: on return every member holds the same bits, joined in rank order; an aborted call throws.
template <class C>
concept CanAllReduce = Communicator<C> && requires(C& comm, Buffer buffer) {
  comm.all_reduce(buffer);
};

//! Law: blocks[r] is what rank r contributed, on every member.
template <class C>
concept CanAllGather = Communicator<C> && requires(C& comm, std::span<std::byte> blocks) {
  comm.all_gather(blocks);
};

//! Law: on return this rank's block of the buffer (count / size elements each) is reduced.
template <class C>
concept CanReduceScatter = Communicator<C> && requires(C& comm, Buffer buffer) {
  comm.reduce_scatter(buffer);
};

template <class C>
concept CanBarrier = Communicator<C> && requires(C& comm) {
  comm.barrier();
};

//! One direction-less pipe to another member. Law: messages arrive complete and in order.
template <class C>
concept Channel = requires(C& channel, ByteView out, std::span<std::byte> in) {
  channel.send(out);
  channel.receive(in);
};

//! A communicator whose members can be replaced: it has a coordinator and opens new generations.
template <class C>
concept Elastic = Communicator<C> && requires(C& comm, const C& seen) {
  { seen.managed() } -> std::same_as<bool>;
  comm.await_view();
};

}  // namespace mend::comm
