#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "mend/comm/group.hpp"
#include "mend/comm/membership/environment.hpp"
#include "mend/comm/tcp_link.hpp"

namespace mend::comm {

//! The communicator over TCP, between processes that a launcher (mendrun) started.
using Tcp = Group<TcpLink>;

//! Joins the launcher that started this process; without one, a group of one. Once per process.
//! Blocks at most options.join_within. Throws CommError (nobody there, another version, a wrong
//! token) and OptionError (half an environment).
inline Tcp join_tcp(TcpOptions options = {}) {
  std::optional<WorkerEnvironment> me = WorkerEnvironment::read();
  if (!me) return {};
  return {std::make_unique<TcpLink>(*me, std::move(options)),
          {me->rank, me->size, me->incarnation, me->replacement, me->timeout}};
}

}  // namespace mend::comm
