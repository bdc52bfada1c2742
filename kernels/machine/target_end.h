// Switches off what target_<name>.h has switched on.
#if defined(PENSTOCK_NO_TARGET)
#undef PENSTOCK_NO_TARGET
#elif defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef PENSTOCK_ISA
#undef PENSTOCK_VEC
#undef PENSTOCK_CODES
#undef PENSTOCK_EIGHT_FLOATS
#undef PENSTOCK_SIXTEEN_FLOATS
#undef PENSTOCK_AVX512
