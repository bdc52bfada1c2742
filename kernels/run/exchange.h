// Tensors of another library in place: the table of C functions that a tensor's type offers (DLPack's exchange API, version 1).
//
// torch's own ways to numpy and back take as long as a small layer; these take a tenth of that.
#pragma once
#include <Python.h>

#include <cstdint>
#include <memory>

namespace penstock {

struct DlTensor {
  void* data;
  std::int32_t device_type, device_id;
  std::int32_t rank;
  std::uint8_t type_code, type_bits;
  std::uint16_t type_lanes;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null for contiguous
  std::uint64_t byte_offset;
};

struct DlManaged {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(DlManaged*);
  std::uint64_t flags;
  DlTensor tensor;
};

struct DlExchange {
  std::uint32_t major, minor;
  DlExchange* previous;
  int (*allocate)(DlTensor* prototype, DlManaged** out, void* context, void (*fail)(void*, const char*, const char*));
  int (*managed_from)(void* object, DlManaged** out);
  int (*managed_to)(DlManaged* tensor, void** object);
  int (*view)(void* object, DlTensor* out);  // may be null
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** out);
};

constexpr std::int32_t kDlCpu = 1;
constexpr std::uint8_t kDlFloat = 2;
constexpr std::uint32_t kDlMajor = 1;

// The table of x's type, or null when it has none of this version. No Python error is left. The GIL is held.
inline const DlExchange* exchange_of(PyObject* x) {
  static PyTypeObject* known = nullptr;  // the type that was asked last, kept alive
  static const DlExchange* table = nullptr;
  PyTypeObject* const type = Py_TYPE(x);
  if (type == known) return table;
  const DlExchange* found = nullptr;
  if (PyObject* capsule = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__")) {
    if (PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
      found = static_cast<const DlExchange*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
      if (found->major != kDlMajor || !found->view || !found->allocate || !found->managed_to) found = nullptr;
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
inline bool view_floats(const DlExchange& exchange, PyObject* x, DlTensor& view) {
  if (exchange.view(x, &view) != 0) {
    PyErr_Clear();
    return false;
  }
  if (view.device_type != kDlCpu || view.type_code != kDlFloat || view.type_bits != 32 || view.type_lanes != 1) return false;
  std::int64_t step = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    if (view.strides && view.shape[axis] != 1 && view.strides[axis] != step) return false;
    step *= view.shape[axis];
  }
  return true;
}

inline float* floats_of(const DlTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

struct DlDelete {
  void operator()(DlManaged* tensor) const {
    if (tensor->deleter) tensor->deleter(tensor);
  }
};
using DlOwned = std::unique_ptr<DlManaged, DlDelete>;

// A new float32 tensor of the library, or null.
inline DlOwned allocate_floats(const DlExchange& exchange, std::int64_t* shape, int rank) {
  DlTensor prototype{nullptr, kDlCpu, 0, rank, kDlFloat, 32, 1, shape, nullptr, 0};
  DlManaged* made = nullptr;
  const auto ignore = [](void*, const char*, const char*) {};
  return DlOwned(exchange.allocate(&prototype, &made, nullptr, ignore) == 0 ? made : nullptr);
}

}  // namespace penstock
