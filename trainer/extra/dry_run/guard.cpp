// Lets autograd run on fake CUDA tensors where torch has no CUDA. Autograd asks a device for streams and events of its
// backward pass, and finds nobody to ask; this answers that everything is on one stream and done.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

constexpr auto kCuda = c10::DeviceType::CUDA;

const c10::Device& device() {
  static const c10::Device only(kCuda, 0);
  return only;
}

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kCuda> {
  c10::Device getDevice() const override { return device(); }
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

 private:
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, device()); }
};

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};

const Guard guard;
const Hooks hooks;

// torch keeps its one object of hooks for good, so it is given another table of methods.
void** methods(const at::CUDAHooksInterface& object) {
  return reinterpret_cast<void**>(const_cast<at::CUDAHooksInterface*>(&object));
}

const c10::impl::DeviceGuardImplInterface* guard_before;
void* methods_before;

}  // namespace

extern "C" void preshard_begin() {
  auto& registered = c10::impl::device_guard_impl_registry[static_cast<size_t>(kCuda)];
  guard_before = registered.exchange(&guard);
  void** own = methods(at::detail::getCUDAHooks());
  methods_before = *own;
  *own = *methods(hooks);
}

extern "C" void preshard_end() {
  c10::impl::device_guard_impl_registry[static_cast<size_t>(kCuda)] = guard_before;
  *methods(at::detail::getCUDAHooks()) = methods_before;
}
