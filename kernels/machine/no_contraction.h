// Keeps a product and a sum two roundings in the rest of the file, so that all instruction sets agree bit for bit.
//
// Such kernels use vectors of one width on every set. Where that is wider than the set's own, compilers warn that a call would pass
// them differently elsewhere; these are all inlined.
#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif
#pragma GCC diagnostic ignored "-Wpsabi"
