#include <mend/kernel/cuda/error.cuh>

#include <doctest/doctest.h>

#include <mend/core/error.hpp>
#include <mend/kernel/cuda/apply.cuh>
#include <mend/kernel/cuda/buffer.cuh>
#include <mend/kernel/cuda/copy.cuh>
#include <mend/kernel/cuda/device.cuh>
#include <mend/kernel/cuda/finite.cuh>
#include <mend/kernel/cuda/hash.cuh>
#include <mend/kernel/cuda/norms.cuh>
#include <mend/kernel/cuda/on_stream.cuh>
#include <mend/kernel/cuda/pack.cuh>
#include <mend/kernel/cuda/reduce.cuh>
#include <mend/kernel/cuda/staged.cuh>
#include <mend/optim/adam.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "cuda/device.hpp"

using mend::DeviceError;
using mend::DType;

namespace {

emulator::Device& device() { return emulator::Device::get(); }

//! A device with a fault, for one test case.
struct Faulty {
  Faulty() { device().repair(); }
  ~Faulty() { device().repair(); }
};

template <class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const DeviceError& e) {
    return e.what();
  }
  return "";
}

//! Everything that the device side does, once.
void everything() {
  const test::Stream stream;
  const mend::OnStream on{stream};
  const test::OnDevice<float> p{std::vector<float>(100, 1)}, g{p.read(stream)};
  const test::OnDevice<float> m{p.read(stream)}, v{p.read(stream)};
  const auto table = mend::cuda::parameters<mend::Adam>(
      {{p.data(), {{m.data(), v.data()}}, g.data(), DType::f32, 100}}, stream);
  mend::cuda::apply_async(table, mend::Adam{}.at(0), 1, stream);
  mend::cuda::CoefficientList<mend::Adam> list{1};
  const std::vector<mend::Adam::Coefficients> c{mend::Adam{}.at(0)};
  list.upload_async(c, stream);
  mend::cuda::revert_async(table, list, 1, stream);
  mend::cuda::SquareSums sums{{{p.data(), DType::f32, 100}}, stream};
  sums.compute_async(stream);
  (void)sums.read(stream);
  mend::cuda::FiniteCheck finite{{{p.data(), DType::f32, 100}}, stream};
  finite.compute_async(stream);
  (void)finite.read(stream);
  mend::cuda::Hashes hashes{{p.bytes()}, stream};
  hashes.compute_async(stream);
  (void)hashes.read(stream);
  const mend::cuda::Packing packing{{p.bytes(), m.bytes()}, stream};
  const mend::cuda::Buffer<std::byte> packed{packing.size()};
  packing.gather_async(packed, stream);
  packing.scatter_async(packed, stream);
  mend::cuda::accumulate_async(DType::f32, p.data(), g.data(), 100, stream);
  on.wait();
}

}  // namespace

TEST_CASE("a machine without a device, a driver, or a new enough one says what to do") {
  const Faulty faulty;
  const auto ask = [] { (void)mend::cuda::Device::current(); };
  CHECK(message_of(ask).empty());
  device().count = 0;
  CHECK(message_of(ask) ==
        "there is no CUDA device here: look at CUDA_VISIBLE_DEVICES, or train on the host");
  device().count = 1;
  device().driver = 0;
  CHECK(message_of(ask) == "no NVIDIA driver is installed here: install one, or train on the host");
  device().driver = 11080;
  CHECK(message_of(ask) ==
        "the NVIDIA driver is older than the CUDA runtime of this program: update the driver");
  device().driver = 13000;
  device().major = 7;
  device().minor = 5;
  CHECK(message_of(ask) ==
        "emulated device has compute capability 7.5; mend needs 8.0 or newer: use another device, "
        "or train on the host");
  CHECK_THROWS_AS(mend::OnStream{nullptr}, DeviceError);
  device().major = 8;
  device().minor = 0;
  CHECK(message_of(ask).empty());
}

TEST_CASE("a full device says so, and serves on") {
  const Faulty faulty;
  device().memory = 1 << 20;
  const mend::cuda::Buffer<float> most{200'000};
  const auto more = [] { const mend::cuda::Buffer<float> b{100'000}; };
  CHECK(message_of(more) ==
        "the device's memory is full: keep less on it, or use a device with more");
  const mend::cuda::Buffer<float> small{1000};
  CHECK(small.data() != nullptr);
}

TEST_CASE("a program for another device is told to compile for this one") {
  const Faulty faulty;
  device().fail(cudaErrorNoKernelImageForDevice);
  CHECK(message_of([] {
          mend::cuda::accumulate_async(DType::f32, nullptr, nullptr, 1, nullptr);
        }) == "this program was not compiled for this device: add its -gencode to nvcc's options");
}

TEST_CASE("another error keeps CUDA's words, its code and the place") {
  const Faulty faulty;
  const test::Stream stream;
  int x = 0;
  try {
    const int line = __LINE__ + 1;
    mend::cuda::check(cudaMemcpyAsync(&x, &x, 4, cudaMemcpyHostToDevice, stream));
    FAIL("no error at line " << line);
  } catch (const DeviceError& e) {
    CHECK(std::string{e.what()} == "CUDA: invalid argument (cudaErrorInvalidValue)");
    CHECK(e.cuda_error() == cudaErrorInvalidValue);
    CHECK(!e.device_lost());
    CHECK(std::string{e.where().file}.ends_with("faults.cpp"));
  }
  CHECK(cudaGetLastError() == cudaSuccess);  // it was cleared
}

TEST_CASE("a lost device is told apart, and nothing hangs or ends the process") {
  const Faulty faulty;
  const test::Stream stream;
  {
    const test::OnDevice<float> memory{{1, 2, 3}};
    device().fail(cudaErrorIllegalAddress, 0, true);
    for (int i = 0; i < 2; ++i) {
      try {
        stream.wait();
        FAIL("no error");
      } catch (const DeviceError& e) {
        CHECK(e.device_lost());
        CHECK(std::string{e.what()}.find("must end and be replaced") != std::string::npos);
      }
    }
    CHECK_THROWS_AS(everything(), DeviceError);
    device().repair();
  }
}

TEST_CASE("every call may fail: a typed error, and no memory is lost") {
  const Faulty faulty;
  std::size_t before = device().allocations();
  const auto calls = device().calls();
  everything();
  const auto all = static_cast<int>(device().calls() - calls);
  CHECK(device().allocations() == before);
  int thrown = 0;
  for (int i = 0; i < all; ++i) {
    CAPTURE(i);
    device().fail(cudaErrorInvalidValue, i);
    try {
      everything();
    } catch (const DeviceError& e) {
      ++thrown;
      CHECK(e.cuda_error() == cudaErrorInvalidValue);
    }
    CHECK(cudaGetLastError() == cudaSuccess);
    device().repair();
    // What a failed cudaFree keeps only the runtime could return.
    CHECK(device().allocations() <= before + 1);
    before = device().allocations();
  }
  CHECK(thrown > all / 2);
  everything();
}

TEST_CASE("device_lost tells what ends the process") {
  for (cudaError_t error : {cudaErrorIllegalAddress, cudaErrorLaunchFailure,
                            cudaErrorECCUncorrectable, cudaErrorMisalignedAddress})
    CHECK(DeviceError{"", error}.device_lost());
  for (cudaError_t error : {cudaSuccess, cudaErrorMemoryAllocation, cudaErrorInvalidValue})
    CHECK(!DeviceError{"", error}.device_lost());
}
