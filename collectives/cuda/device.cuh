// What kernels ask of a device: words that other processes see, packs of 16 bytes, and arithmetic that nobody contracts.
//
// Two compilers read these sources. NVRTC and nvcc make device code of them. A C++ compiler makes code for the CPU of
// them, in tests, with a header that gives the same names (shim.h).
#pragma once

#if defined(__CUDACC__)
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;

#define DEVICE __device__ __forceinline__
#define SHARED(type, name) __shared__ type name
#define ARGUMENT(type) const __grid_constant__ type
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")

struct Pack {
    u32 w[4];
};

// ------------------------------------------------------------ words that other devices and processes see
DEVICE u32 load_acquire(const u32* at) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

DEVICE u32 load_relaxed(const u32* at) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

DEVICE void store_release(u32* at, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

DEVICE u32 compare_and_swap(u32* at, u32 expected, u32 value) {
    return atomicCAS(at, expected, value);
}

DEVICE u32 add_and_fetch(u32* at, u32 value) {  // acquires and releases
    u32 old;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(at), "r"(value) : "memory");
    return old + value;
}

DEVICE u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

DEVICE void give_way() {}

// ------------------------------------------------------------ memory of any owner, never through the read-only cache
DEVICE Pack load_pack(const u8* at) {
    Pack p;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(p.w[0]), "=r"(p.w[1]), "=r"(p.w[2]), "=r"(p.w[3])
                 : "l"(at)
                 : "memory");
    return p;
}

DEVICE void store_pack(u8* at, const Pack& p) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(p.w[0]), "r"(p.w[1]), "r"(p.w[2]), "r"(p.w[3])
                 : "memory");
}

template <class Word>
DEVICE Word load_word(const u8* at) {
    Word value;
    if constexpr (sizeof(Word) == 2) asm volatile("ld.global.u16 %0, [%1];" : "=h"(value) : "l"(at) : "memory");
    if constexpr (sizeof(Word) == 4) asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    if constexpr (sizeof(Word) == 8) asm volatile("ld.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

template <class Word>
DEVICE void store_word(u8* at, Word value) {
    if constexpr (sizeof(Word) == 2) asm volatile("st.global.u16 [%0], %1;" ::"l"(at), "h"(value) : "memory");
    if constexpr (sizeof(Word) == 4) asm volatile("st.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
    if constexpr (sizeof(Word) == 8) asm volatile("st.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

// ------------------------------------------------------------ numbers
DEVICE float as_float(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 as_bits(float x) { return __float_as_uint(x); }
DEVICE double as_double(u64 bits) { return __longlong_as_double(static_cast<i64>(bits)); }
DEVICE u64 as_bits(double x) { return static_cast<u64>(__double_as_longlong(x)); }

DEVICE float add(float x, float y) { return __fadd_rn(x, y); }
DEVICE double add(double x, double y) { return __dadd_rn(x, y); }
DEVICE float multiply(float x, float y) { return __fmul_rn(x, y); }
DEVICE double multiply(double x, double y) { return __dmul_rn(x, y); }
DEVICE float divide(float x, float y) { return __fdiv_rn(x, y); }
DEVICE double divide(double x, double y) { return __ddiv_rn(x, y); }

DEVICE float half_to_float(u32 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<u16>(bits)));
    return x;
}

DEVICE u32 float_to_half(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#else
#include "shim.h"
#endif
