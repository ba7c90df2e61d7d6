#pragma once

//! Everything a trainer on the host needs. Its headers can be included one by one instead.

#include "mend/config.hpp"  // first: it says what compiler is needed

#include "mend/comm/communicator.hpp"
#include "mend/comm/tcp.hpp"
#include "mend/comm/threads.hpp"
#include "mend/core/dtype.hpp"
#include "mend/core/error.hpp"
#include "mend/core/placement.hpp"
#include "mend/core/step.hpp"
#include "mend/core/train_state.hpp"
#include "mend/optim/adam.hpp"
#include "mend/optim/clip_norm.hpp"
#include "mend/optim/momentum.hpp"
#include "mend/optim/own_update.hpp"
#include "mend/optim/per_group.hpp"
#include "mend/optim/sgd.hpp"
#include "mend/optim/skip_non_finite.hpp"
#include "mend/optim/undo/roll_forward.hpp"
#include "mend/optim/undo/snapshot.hpp"
#include "mend/session/session.hpp"
#include "mend/store/safetensors.hpp"
