// A device of torch's "PrivateUse1" kind, named `example`: two devices of 2 GiB each, in the host's memory. It owns its
// allocator, its current device, its copies and one operator. What it lacks of torch's own operators is computed on the
// host by torch's boxed fallback, which copies tensors there and back.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>

#include "matmul.h"

namespace {

using at::Tensor;
constexpr auto kKind = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
constexpr int64_t kBytes = int64_t{2} << 30;

thread_local c10::DeviceIndex current = 0;
std::array<std::atomic<int64_t>, kDevices> used{};

c10::DeviceIndex exchange(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < kDevices, "example: there are devices 0 and 1, but ", int(index), " was asked for");
  return std::exchange(current, index);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kKind; }
  c10::Device exchangeDevice(c10::Device d) const override { return {kKind, exchange(d.index())}; }
  c10::Device getDevice() const override { return {kKind, current}; }
  void setDevice(c10::Device d) const override { exchange(d.index()); }
  void uncheckedSetDevice(c10::Device d) const noexcept override { current = d.index(); }
  c10::Stream getStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return getStream(s.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void synchronizeDevice(c10::DeviceIndex) const override {}  // every operator has ended when it returns
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {  // `torch.accelerator` asks these, and the guard for the rest
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};

struct Block {
  void* data;
  int64_t bytes;
  c10::DeviceIndex device;
  static void drop(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    std::free(block->data);
    used[block->device] -= block->bytes;
  }
};

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const auto bytes = static_cast<int64_t>(size);
    const auto fits = used[current].fetch_add(bytes) + bytes <= kBytes;
    void* data = bytes && fits ? std::aligned_alloc(64, (size + 63) / 64 * 64) : nullptr;
    if (bytes && !data) used[current] -= bytes;
    TORCH_CHECK_WITH(OutOfMemoryError, data || !bytes, "example: out of memory: ", bytes, " bytes were asked for");
    return {data, new Block{data, bytes, current}, &Block::drop, c10::Device(kKind, current)};
  }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
} allocator;

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   at::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           at::dtype_or_default(dtype));
}

// The same memory as a host tensor: a real device would copy instead.
Tensor host(const Tensor& t) {
  return t.is_cpu() ? t : at::from_blob(t.data_ptr(), t.sizes(), t.strides(), at::TensorOptions(t.scalar_type()));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  host(to).copy_(host(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar scalar(const Tensor& t) { return at::_local_scalar_dense(host(t)); }

// Refused: an operator outside torch that was written for the host alone, and tensors of several devices. Both would be
// computed here unnoticed, with copies around them.
void on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& name = op.schema().name();
  TORCH_CHECK_NOT_IMPLEMENTED(name.rfind("aten::", 0) == 0, name, " has no kernel for the device `example`");
  std::optional<at::Device> home;
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().dim()) continue;
    const auto device = value.toTensor().device();
    TORCH_CHECK(home.value_or(device) == device, name, ": tensors on ", *home, " and on ", device);
    home = device;
  }
  at::native::cpu_fallback(op, stack);
}

Tensor matmul(const Tensor& x, const Tensor& weight) {
  TORCH_CHECK(x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1), "example: matmul of ", x.sizes(), " by ",
              weight.sizes());
  TORCH_CHECK(x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat, "example: matmul takes float32");
  TORCH_CHECK(x.device() == weight.device(), "example: matmul across ", x.device(), " and ", weight.device());
  const auto left = x.contiguous(), right = weight.contiguous();
  auto out = at::empty({x.size(0), weight.size(0)}, x.options());
  example::matmul(left.const_data_ptr<float>(), right.const_data_ptr<float>(), out.mutable_data_ptr<float>(), x.size(0),
                  weight.size(0), x.size(1));
  return out;
}

TORCH_LIBRARY(headrace_example, m) {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(kKind, &allocator);
  m.def("matmul(Tensor x, Tensor weight) -> Tensor");
  m.def("memory_used", [](int64_t index) -> int64_t { return used.at(index); });
  m.def("exchange_device", [](int64_t index) -> int64_t { return exchange(static_cast<c10::DeviceIndex>(index)); });
  m.def("current_device", []() -> int64_t { return current; });
}
TORCH_LIBRARY_IMPL(headrace_example, PrivateUse1, m) { m.impl("matmul", &matmul); }
// Where gradients are not ruled out altogether, torch 2.9 would find no kernel of an operator outside torch.
TORCH_LIBRARY_IMPL(headrace_example, AutogradPrivateUse1, m) { m.impl("matmul", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &at::native::resize_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &scalar);
}

}  // namespace
