#include <mend/optim/undo/ping_pong.hpp>

#include <doctest/doctest.h>

#include "optim/undo/every_rule.hpp"

TEST_CASE("ping-pong restores the bits of every rule, after any prefix of tensors") {
  test::restores_every_rule<mend::PingPong>();
}

TEST_CASE("ping-pong restores doubles") {
  test::restores<mend::PingPong, double>(mend::Adam{});
  test::restores<mend::PingPong, double>(mend::Sgd{});
}
