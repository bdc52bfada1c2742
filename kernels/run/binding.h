// What both files of the Python border share: arrays as nanobind has them, and errors as Python has them.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "machine/cpu.h"

namespace penstock {

namespace nb = nanobind;

template <typename T, int Rank>
using In = nb::ndarray<const T, nb::ndim<Rank>, nb::c_contig, nb::device::cpu>;
template <typename T, int Rank>
using Out = nb::ndarray<T, nb::ndim<Rank>, nb::c_contig, nb::device::cpu>;

inline Isa isa_from(const std::string& name) {
  Isa isa;
  if (!parse_isa(name.c_str(), isa)) throw nb::value_error(("unknown instruction set " + name).c_str());
  if (!isa_available(isa)) throw nb::value_error(("this machine does not have " + name).c_str());
  return isa;
}

inline void require(bool good, const char* what) {
  if (!good) throw nb::value_error(what);
}

// Adds the class Engine and its errors to the module.
void bind_engine(nb::module_& module);

}  // namespace penstock
