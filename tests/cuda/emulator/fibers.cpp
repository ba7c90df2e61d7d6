#include "fibers.hpp"

#include <doctest/doctest.h>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// What the emulator promises to the tests of the kernels: CUDA's results for a correct kernel, and
// a complaint for the usual mistakes.

namespace {

template <class... Parameters, class... Arguments>
void run(unsigned blocks, unsigned threads, void (*kernel)(Parameters...), Arguments... arguments) {
  emulator::Machine::get().run(blocks, threads, [&] { kernel(arguments...); });
}

//! Both orders of threads.
template <class Body>
void twice(const Body& body) {
  body();
  body();
}

__global__ void number(int* to) {
  to[blockIdx.x * blockDim.x + threadIdx.x] =
      static_cast<int>(gridDim.x * 1000 + blockIdx.x * 100 + threadIdx.x);
}

__global__ void reverse(int* x) {
  __shared__ int copy[64];
  copy[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = copy[63 - threadIdx.x];
}

__global__ void reverse_without_barrier(int* x) {
  __shared__ int copy[64];
  copy[threadIdx.x] = x[threadIdx.x];
  x[threadIdx.x] = copy[63 - threadIdx.x];
}

__global__ void warp_operations(unsigned* out) {
  const unsigned me = threadIdx.x;
  out[me] = __shfl_sync(~0u, me, 5);
  out[64 + me] = __shfl_xor_sync(~0u, me, 1);
  out[128 + me] = __shfl_down_sync(~0u, me, 4);
  out[192 + me] = __shfl_up_sync(~0u, me, 4);
  out[256 + me] = __ballot_sync(~0u, me % 3 == 0);
  if (me % 32 < 8) out[320 + me] = __ballot_sync(0xff, 1) + (__any_sync(0xff, me == 3) ? 1000 : 0);
  __syncwarp();
  atomicAdd(&out[384], 1u);
  atomicOr(&out[385], 1u << me % 32);
  atomicMax(&out[386], me);
}

__global__ void half_a_barrier() {
  if (threadIdx.x < 32) __syncthreads();
}
__global__ void two_barriers() {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
}
__global__ void half_a_warp() {
  if (threadIdx.x < 16) __syncwarp();
}
__global__ void lane_outside() {
  (void)__shfl_sync(threadIdx.x % 32 < 16 ? 0xffffu : ~0xffffu, 1, 20);
}
__global__ void not_my_mask() { __syncwarp(0xff); }

std::string complaint(void (*kernel)()) {
  try {
    run(1, 64, kernel);
  } catch (const emulator::KernelError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("threads know where they are") {
  std::vector<int> x(3 * 40), expected;
  for (int block = 0; block < 3; ++block)
    for (int thread = 0; thread < 40; ++thread) expected.push_back(3000 + block * 100 + thread);
  twice([&] {
    x.assign(x.size(), 0);
    run(3, 40, &number, x.data());
    CHECK(x == expected);
  });
}

TEST_CASE("a barrier makes a block's writes seen; without it results depend on the order") {
  std::vector<int> x(64), expected(64);
  for (int i = 0; i < 64; ++i) expected[static_cast<std::size_t>(i)] = 63 - i;
  const auto result = [&](auto kernel) {
    for (int i = 0; i < 64; ++i) x[static_cast<std::size_t>(i)] = i;
    run(1, 64, kernel, x.data());
    return x;
  };
  twice([&] { CHECK(result(&reverse) == expected); });
  const auto one = result(&reverse_without_barrier), other = result(&reverse_without_barrier);
  CHECK((one != expected || other != expected));
}

TEST_CASE("warp operations give what CUDA defines") {
  twice([] {
    std::vector<unsigned> out(400);
    run(1, 64, &warp_operations, out.data());
    for (unsigned me = 0; me < 64; ++me) {
      const unsigned lane = me % 32, warp = me - lane;
      CHECK(out[me] == warp + 5);
      CHECK(out[64 + me] == (me ^ 1));
      CHECK(out[128 + me] == (lane < 28 ? me + 4 : me));
      CHECK(out[192 + me] == (lane >= 4 ? me - 4 : me));
      unsigned thirds = 0;
      for (unsigned l = 0; l < 32; ++l) thirds |= ((warp + l) % 3 == 0 ? 1u : 0u) << l;
      CHECK(out[256 + me] == thirds);
      if (lane < 8) CHECK(out[320 + me] == 0xff + (me < 32 ? 1000u : 0u));
    }
    CHECK(out[384] == 64);
    CHECK(out[385] == ~0u);
    CHECK(out[386] == 63);
  });
}

TEST_CASE("divergent barriers and wrong masks are found") {
  twice([] {
    CHECK(complaint(&half_a_barrier).find("divergent: thread 0 waits in __syncthreads") == 0);
    CHECK(complaint(&half_a_barrier).find("thread 32 has ended") != std::string::npos);
    CHECK(complaint(&two_barriers).find("thread 32 waits in __syncthreads") != std::string::npos);
    CHECK(complaint(&half_a_warp).find("thread 16 has ended") != std::string::npos);
    CHECK(complaint(&lane_outside).find("reads a lane outside its mask") != std::string::npos);
    CHECK(complaint(&not_my_mask).find("is not in its own mask") != std::string::npos);
  });
  std::vector<int> x(3 * 40);
  run(3, 40, &number, x.data());  // and the machine goes on
  CHECK(x[119] == 3239);
}

#if !defined(EMULATOR_ASAN)  // which would end the program
static __global__ void write_at(int* to, std::size_t at) { to[at] = 1; }

TEST_CASE("a write past the end of device memory is found when it is freed") {
  int* p = nullptr;
  REQUIRE(cudaMalloc(&p, 10 * sizeof(int)) == cudaSuccess);
  run(1, 1, &write_at, p, std::size_t{10});
  CHECK_THROWS_AS((void)cudaFree(p), emulator::KernelError);
  run(1, 1, &write_at, p, std::size_t{9});
  std::memset(p + 10, 0xa5, sizeof(int));
  CHECK(cudaFree(p) == cudaSuccess);
}
#endif

TEST_CASE("work on a stream waits until somebody waits for it") {
  cudaStream_t stream = nullptr;
  int* p = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  REQUIRE(cudaMalloc(&p, sizeof(int)) == cudaSuccess);
  int* pinned = nullptr;
  REQUIRE(cudaMallocHost(&pinned, sizeof(int)) == cudaSuccess);
  *pinned = 7;
  REQUIRE(cudaMemsetAsync(p, 1, sizeof(int), stream) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(pinned, p, sizeof(int), cudaMemcpyDeviceToHost, stream) == cudaSuccess);
  CHECK(*pinned == 7);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(*pinned == 0x01010101);
  CHECK(cudaMemcpyAsync(p, p, sizeof(int), cudaMemcpyHostToDevice, stream) ==
        cudaErrorInvalidValue);
  CHECK(cudaMemcpyAsync(pinned, p, 2 * sizeof(int), cudaMemcpyDeviceToHost, stream) ==
        cudaErrorInvalidValue);
  CHECK(cudaFree(p) == cudaSuccess);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  (void)cudaGetLastError();
}
