#pragma once

//! Everything that a trainer on a CUDA device needs beside mend.hpp, which it includes. For nvcc.

#include "mend/mend.hpp"  // first: it says what compiler is needed

#include "mend/kernel/cuda/apply.cuh"
#include "mend/kernel/cuda/buffer.cuh"
#include "mend/kernel/cuda/convert.cuh"
#include "mend/kernel/cuda/copy.cuh"
#include "mend/kernel/cuda/device.cuh"
#include "mend/kernel/cuda/error.cuh"
#include "mend/kernel/cuda/exact.cuh"
#include "mend/kernel/cuda/finite.cuh"
#include "mend/kernel/cuda/hash.cuh"
#include "mend/kernel/cuda/norms.cuh"
#include "mend/kernel/cuda/on_stream.cuh"
#include "mend/kernel/cuda/pack.cuh"
#include "mend/kernel/cuda/reduce.cuh"
#include "mend/kernel/cuda/rule_norms.cuh"
#include "mend/kernel/cuda/span.cuh"
#include "mend/kernel/cuda/staged.cuh"
#include "mend/kernel/cuda/table.cuh"
#include "mend/session/device_bucket.cuh"
