#pragma once

// Every rule there is.

#include <mend/optim/adagrad.hpp>
#include <mend/optim/adam.hpp>
#include <mend/optim/adamw.hpp>
#include <mend/optim/amsgrad.hpp>
#include <mend/optim/lamb.hpp>
#include <mend/optim/lars.hpp>
#include <mend/optim/lion.hpp>
#include <mend/optim/momentum.hpp>
#include <mend/optim/nadam.hpp>
#include <mend/optim/rmsprop.hpp>
#include <mend/optim/sgd.hpp>

#define MEND_TEST_INVERTIBLE_RULES                                                           \
  mend::Sgd, mend::Momentum, mend::Adam, mend::AdamW, mend::Lamb, mend::Lars, mend::Adagrad, \
      mend::RmsProp, mend::Lion, mend::NAdam
#define MEND_TEST_RULES MEND_TEST_INVERTIBLE_RULES, mend::AmsGrad
