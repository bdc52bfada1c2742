// The list of instruction sets (targets.def) in C++: what compilers need to know to write one row for each.
//
//     #define TARGET(name, architecture, runs_here, wide) ...
//     #include "machine/targets.def"
//     #undef TARGET
#pragma once

#if defined(__x86_64__)
#define PENSTOCK_X86 1
#else
#define PENSTOCK_X86 0
#endif

// A build for one machine without AVX-512 leaves these kernels out (CMake's PENSTOCK_AVX512): a quarter of the compiling.
#if PENSTOCK_X86 && !defined(PENSTOCK_WITHOUT_AVX512)
#define PENSTOCK_X86_512 1
#else
#define PENSTOCK_X86_512 0
#endif

#if defined(__aarch64__)
#define PENSTOCK_ARM64 1
#else
#define PENSTOCK_ARM64 0
#endif

// `yes` where the macro `architecture` is 1, `no` where it is 0.
#define PENSTOCK_WHERE(architecture, yes, no) PENSTOCK_WHERE_NOW(architecture, yes, no)
#define PENSTOCK_WHERE_NOW(architecture, yes, no) PENSTOCK_WHERE_##architecture(yes, no)
#define PENSTOCK_WHERE_1(yes, no) yes
#define PENSTOCK_WHERE_0(yes, no) no

#define PENSTOCK_JOIN(a, b) PENSTOCK_JOIN_NOW(a, b)
#define PENSTOCK_JOIN_NOW(a, b) a##b
