// Tensors of another library in place: the table of C functions that a tensor's type offers (DLPack's exchange API, version 1).
//
// torch's own ways to numpy and back take as long as a small layer; these take a tenth of that.
#pragma once
#include <Python.h>

#include <cstdint>
#include <memory>

// DLPack's own header: from apache-tvm-ffi, which the build requires, or the copy in torch (CMakeLists.txt).
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#else
#include <ATen/dlpack.h>
#endif

namespace penstock {

// The table of x's type, or null when it has none of this version. No Python error is left. The GIL is held.
inline const DLPackExchangeAPI* exchange_of(PyObject* x) {
  static PyTypeObject* known = nullptr;  // the type that was asked last, kept alive
  static const DLPackExchangeAPI* table = nullptr;
  PyTypeObject* const type = Py_TYPE(x);
  if (type == known) return table;
  const DLPackExchangeAPI* found = nullptr;
  if (PyObject* capsule = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__")) {
    if (PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
      found = static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
      if (found->header.version.major != DLPACK_MAJOR_VERSION || !found->dltensor_from_py_object_no_sync) found = nullptr;
    }
    Py_DECREF(capsule);
  }
  PyErr_Clear();
  Py_INCREF(type);
  Py_XDECREF(known);
  known = type;
  table = found;
  return table;
}

// Looks at x in place. False when it is not contiguous float32 in this machine's memory, which leaves no Python error either.
inline bool view_floats(const DLPackExchangeAPI& exchange, PyObject* x, DLTensor& view) {
  if (exchange.dltensor_from_py_object_no_sync(x, &view) != 0) {
    PyErr_Clear();
    return false;
  }
  if (view.device.device_type != kDLCPU || view.dtype.code != kDLFloat || view.dtype.bits != 32 || view.dtype.lanes != 1)
    return false;
  std::int64_t step = 1;
  for (int axis = view.ndim - 1; axis >= 0; --axis) {
    if (view.strides && view.shape[axis] != 1 && view.strides[axis] != step) return false;
    step *= view.shape[axis];
  }
  return true;
}

inline float* floats_of(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

struct DlDelete {
  void operator()(DLManagedTensorVersioned* tensor) const {
    if (tensor->deleter) tensor->deleter(tensor);
  }
};
using DlOwned = std::unique_ptr<DLManagedTensorVersioned, DlDelete>;

// A new float32 tensor of the library, or null.
inline DlOwned allocate_floats(const DLPackExchangeAPI& exchange, std::int64_t* shape, int rank) {
  DLTensor prototype{nullptr, {kDLCPU, 0}, rank, {kDLFloat, 32, 1}, shape, nullptr, 0};
  DLManagedTensorVersioned* made = nullptr;
  const auto ignore = [](void*, const char*, const char*) {};
  return DlOwned(exchange.managed_tensor_allocator(&prototype, &made, nullptr, ignore) == 0 ? made : nullptr);
}

}  // namespace penstock
