// What is fixed for an instruction set: how many inputs a lane multiplies at once, and how wide they are.
#if defined(PENSTOCK_VEC_AVX512)
#if defined(PENSTOCK_VEC_VNNI)
constexpr bool kQuadCodes = true;
#else
constexpr bool kQuadCodes = false;
#endif
constexpr Isa kIsa = Isa::avx512;
#elif defined(PENSTOCK_VEC_AVX2)
constexpr bool kQuadCodes = false;
constexpr Isa kIsa = Isa::avx2;
#elif defined(PENSTOCK_VEC_NEON)
#if defined(PENSTOCK_VEC_DOT) || defined(PENSTOCK_VEC_MATRIX)
constexpr bool kQuadCodes = true;
#else
constexpr bool kQuadCodes = false;
#endif
constexpr Isa kIsa = Isa::neon;
#else
constexpr bool kQuadCodes = false;
constexpr Isa kIsa = Isa::baseline;
#endif
// Inputs that a lane multiplies at once, and the bytes of their weights for a vector of outputs.
#if defined(PENSTOCK_VEC_MATRIX)
constexpr int kGroup = 8, kGroupBytes = 8 * kLanes;
#else
constexpr int kGroup = kQuadCodes ? 4 : 2, kGroupBytes = kVectorBytes;
#endif
constexpr int kMostTaps = kInt8MostTaps;

// Whether weights can be gathered piece by piece, as they are multiplied (stream.inl).
#if defined(PENSTOCK_VEC_VNNI) || defined(PENSTOCK_VEC_NEON)
#define PENSTOCK_STREAMS 0
#else
#define PENSTOCK_STREAMS 1
#endif

// What transforms filters panel by panel (gather_windows.inl).
#if defined(PENSTOCK_VEC_VNNI)
#define PENSTOCK_GATHERS_PANELS gather_panel
#else
#define PENSTOCK_GATHERS_PANELS nullptr
#endif

// Whether depthwise layers take four taps at a time (depthwise_quads.inl).
#if defined(PENSTOCK_VEC_VNNI)
#define PENSTOCK_DEPTHWISE_QUADS 1
#else
#define PENSTOCK_DEPTHWISE_QUADS 0
#endif

PENSTOCK_INLINE int round_words(int count) { return (count + 2 * kLanes - 1) / (2 * kLanes) * (2 * kLanes); }
