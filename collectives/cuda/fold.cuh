// The n-ary fold: ((a[i] + b[i]) + c[i]) + ..., in the operands' order, half types accumulated in float32 and rounded
// once. The bits are those of the CPU's kernels (native/kernels.py): one NaN, min and max let NaN through and order -0
// below +0, integers wrap, and a mean neither overflows nor underflows.
#pragma once
#include "device.cuh"

// ------------------------------------------------------------ element types: what is stored, and what is computed with
struct Float16 {
    typedef float Wide;
    typedef u16 Bits;
    static const bool floating = true, overflows = false;  // in a mean: float32 has room for every sum of these
    static DEVICE Wide wide(Bits b) { return half_to_float(b); }
    static DEVICE Bits bits(Wide x) { return x != x ? 0x7E00 : static_cast<Bits>(float_to_half(x)); }
};

struct BFloat16 {
    typedef float Wide;
    typedef u16 Bits;
    static const bool floating = true, overflows = true;
    static DEVICE Wide wide(Bits b) { return as_float(static_cast<u32>(b) << 16); }
    static DEVICE Bits bits(Wide x) {  // to nearest even
        u32 w = as_bits(x);
        return x != x ? 0x7FC0 : static_cast<Bits>((w + 0x7FFF + ((w >> 16) & 1)) >> 16);
    }
};

struct Float32 {
    typedef float Wide;
    typedef u32 Bits;
    static const bool floating = true, overflows = true;
    static DEVICE Wide wide(Bits b) { return as_float(b); }
    static DEVICE Bits bits(Wide x) { return x != x ? 0x7FC00000u : as_bits(x); }
};

struct Float64 {
    typedef double Wide;
    typedef u64 Bits;
    static const bool floating = true, overflows = true;
    static DEVICE Wide wide(Bits b) { return as_double(b); }
    static DEVICE Bits bits(Wide x) { return x != x ? 0x7FF8000000000000ull : as_bits(x); }
};

struct Int32 {
    typedef i32 Wide;
    typedef u32 Bits;
    static const bool floating = false, overflows = false;
    static DEVICE Wide wide(Bits b) { return static_cast<Wide>(b); }
    static DEVICE Bits bits(Wide x) { return static_cast<Bits>(x); }
};

struct Int64 {
    typedef i64 Wide;
    typedef u64 Bits;
    static const bool floating = false, overflows = false;
    static DEVICE Wide wide(Bits b) { return static_cast<Wide>(b); }
    static DEVICE Bits bits(Wide x) { return static_cast<Bits>(x); }
};

// ------------------------------------------------------------ operations
DEVICE i32 add(i32 x, i32 y) { return static_cast<i32>(static_cast<u32>(x) + static_cast<u32>(y)); }
DEVICE i64 add(i64 x, i64 y) { return static_cast<i64>(static_cast<u64>(x) + static_cast<u64>(y)); }
DEVICE i32 multiply(i32 x, i32 y) { return static_cast<i32>(static_cast<u32>(x) * static_cast<u32>(y)); }
DEVICE i64 multiply(i64 x, i64 y) { return static_cast<i64>(static_cast<u64>(x) * static_cast<u64>(y)); }

DEVICE bool negative(float x) { return as_bits(x) >> 31; }
DEVICE bool negative(double x) { return as_bits(x) >> 63; }
DEVICE bool negative(i32 x) { return x < 0; }
DEVICE bool negative(i64 x) { return x < 0; }

template <class N, int OP>
DEVICE typename N::Wide combine(typename N::Wide x, typename N::Wide y) {
    if constexpr (OP == OP_SUM || OP == OP_AVG) return add(x, y);
    if constexpr (OP == OP_PROD) return multiply(x, y);
    if constexpr (OP == OP_MIN || OP == OP_MAX) {
        if (x != x) return x;
        if (y != y) return y;
        bool less = x < y || (x == y && negative(x));
        return less == (OP == OP_MIN) ? x : y;
    }
    if constexpr (OP == OP_AND) return x & y;
    if constexpr (OP == OP_OR) return x | y;
    if constexpr (OP == OP_XOR) return x ^ y;
}

// ------------------------------------------------------------ packs
template <class N>
DEVICE typename N::Bits lane(const Pack& p, int i) {
    if constexpr (sizeof(typename N::Bits) == 2) return static_cast<u16>(p.w[i / 2] >> (16 * (i & 1)));
    if constexpr (sizeof(typename N::Bits) == 4) return p.w[i];
    if constexpr (sizeof(typename N::Bits) == 8) return p.w[2 * i] | static_cast<u64>(p.w[2 * i + 1]) << 32;
}

template <class N>
DEVICE void set_lane(Pack& p, int i, typename N::Bits bits) {
    if constexpr (sizeof(bits) == 2) p.w[i / 2] = i & 1 ? p.w[i / 2] | static_cast<u32>(bits) << 16 : bits;
    if constexpr (sizeof(bits) == 4) p.w[i] = bits;
    if constexpr (sizeof(bits) == 8) p.w[2 * i] = static_cast<u32>(bits), p.w[2 * i + 1] = static_cast<u32>(bits >> 32);
}

template <class N>
DEVICE void replace_lane(Pack& p, int i, typename N::Bits bits) {
    if constexpr (sizeof(bits) == 2) {
        u32 shift = 16 * (i & 1);
        p.w[i / 2] = (p.w[i / 2] & ~(0xFFFFu << shift)) | static_cast<u32>(bits) << shift;
    } else {
        set_lane<N>(p, i, bits);
    }
}

// From an address of any alignment: of the widest words that it allows.
DEVICE Pack load_any(const u8* at) {
    u64 address = reinterpret_cast<u64>(at);
    if ((address & 15) == 0) return load_pack(at);
    Pack p;
    if ((address & 3) == 0) {
        UNROLL for (int i = 0; i < 4; i++) p.w[i] = load_word<u32>(at + 4 * i);
    } else {
        UNROLL for (int i = 0; i < 4; i++)
            p.w[i] = load_word<u16>(at + 4 * i) | static_cast<u32>(load_word<u16>(at + 4 * i + 2)) << 16;
    }
    return p;
}

DEVICE void store_any(u8* at, const Pack& p) {
    u64 address = reinterpret_cast<u64>(at);
    if ((address & 15) == 0) return store_pack(at, p);
    if ((address & 3) == 0) {
        UNROLL for (int i = 0; i < 4; i++) store_word<u32>(at + 4 * i, p.w[i]);
    } else {
        UNROLL for (int i = 0; i < 8; i++) store_word<u16>(at + 2 * i, static_cast<u16>(p.w[i / 2] >> (16 * (i & 1))));
    }
}

// ------------------------------------------------------------ who does what
struct Team {  // threads that share some work, and which of them this one is
    u64 index, size;
};

DEVICE Team block() { return {threadIdx.x, blockDim.x}; }
DEVICE Team grid() { return {static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x, static_cast<u64>(gridDim.x) * blockDim.x}; }

struct Places {  // of one span in several memories
    u8* at[MAX_RANKS];
    i32 n;
};

DEVICE bool aligned(const Places& places) {
    u64 all = 0;
    for (int k = 0; k < places.n; k++) all |= reinterpret_cast<u64>(places.at[k]);
    return (all & 15) == 0;
}

// ------------------------------------------------------------ copying
const int PACKS = 4;  // that a thread has under way at once

template <bool ALIGNED>
DEVICE void copy_packs(u8* target, const u8* source, u64 packs, Team team) {
    u64 i = team.index;
    for (; i + (PACKS - 1) * team.size < packs; i += PACKS * team.size) {
        Pack p[PACKS];
        UNROLL for (int k = 0; k < PACKS; k++) {
            const u8* from = source + 16 * (i + k * team.size);
            p[k] = ALIGNED ? load_pack(from) : load_any(from);
        }
        UNROLL for (int k = 0; k < PACKS; k++) {
            u8* to = target + 16 * (i + k * team.size);
            ALIGNED ? store_pack(to, p[k]) : store_any(to, p[k]);
        }
    }
    for (; i < packs; i += team.size) {
        ALIGNED ? store_pack(target + 16 * i, load_pack(source + 16 * i))
                : store_any(target + 16 * i, load_any(source + 16 * i));
    }
}

// An even number of bytes, from and to even addresses.
DEVICE void copy(u8* target, const u8* source, u64 bytes, Team team) {
    if (target == source) return;
    u64 packs = bytes / 16;
    if (((reinterpret_cast<u64>(target) | reinterpret_cast<u64>(source)) & 15) == 0)
        copy_packs<true>(target, source, packs, team);
    else
        copy_packs<false>(target, source, packs, team);
    for (u64 at = 16 * packs + 2 * team.index; at < bytes; at += 2 * team.size)
        store_word<u16>(target + at, load_word<u16>(source + at));
}

// ------------------------------------------------------------ folding
struct Weights {  // of a mean's operands; all 1 where there are none
    const i64* at;
    i64 whole;  // what they add up to

    DEVICE i64 operator[](int k) const { return at ? at[k] : 1; }
};

DEVICE Weights equal(int n) { return {nullptr, n}; }

template <class N>
DEVICE typename N::Wide over(typename N::Wide x, i64 whole) {  // for a power of two a multiplication, with the same bits
    typedef typename N::Wide Wide;
    Wide divisor = static_cast<Wide>(whole);
    return (whole & (whole - 1)) == 0 ? multiply(x, divide(static_cast<Wide>(1), divisor)) : divide(x, divisor);
}

// The mean of one element from operands made smaller, made larger again: finite if they are.
template <class N>
DEVICE typename N::Wide careful_mean(const Places& in, u64 at, const Weights& weights) {
    typedef typename N::Wide Wide;
    const Wide smaller = static_cast<Wide>(5.421010862427522e-20);  // 2**-64
    Wide total = 0;
    for (int k = 0; k < in.n; k++) {
        Wide x = N::wide(load_word<typename N::Bits>(in.at[k] + at));
        x = multiply(multiply(x, smaller), static_cast<Wide>(weights[k]));
        total = k ? add(total, x) : x;
    }
    return multiply(over<N>(total, weights.whole), divide(static_cast<Wide>(1), smaller));
}

template <class N, int OP>
DEVICE typename N::Wide finished(typename N::Wide total, const Weights& weights) {
    if constexpr (OP == OP_AVG) return over<N>(total, weights.whole);
    return total;
}

template <class N, int OP>
DEVICE bool needs_care(typename N::Wide mean) {  // of operands that may well be finite
    if constexpr (OP == OP_AVG && N::overflows) return !(mean - mean == 0);
    return false;
}

template <class N, int OP>
DEVICE typename N::Wide term(typename N::Bits bits, i64 weight) {
    if constexpr (OP == OP_AVG) return multiply(N::wide(bits), static_cast<typename N::Wide>(weight));
    return N::wide(bits);
}

// A pack's lanes that are not finite, once more.
template <class N, int OP>
DEVICE void mend(Pack& p, const Places& in, u64 at, const Weights& weights) {
    if constexpr (OP == OP_AVG) {
        const int lanes = 16 / sizeof(typename N::Bits);
        ROLLED for (int i = 0; i < lanes; i++) {
            typename N::Bits bits = N::bits(careful_mean<N>(in, at + i * sizeof(typename N::Bits), weights));
            UNROLL for (int k = 0; k < lanes; k++) {  // no index into registers
                if (k == i && needs_care<N, OP>(N::wide(lane<N>(p, k)))) replace_lane<N>(p, k, bits);
            }
        }
    }
}

// COUNT packs of each operand, `apart` bytes from each other.
template <class N, int OP, int COUNT, bool ALIGNED>
DEVICE void fold_packs(const Places& out, const Places& in, u64 at, u64 apart, const Weights& weights) {
    const int lanes = 16 / sizeof(typename N::Bits);
    typename N::Wide total[COUNT][lanes];
    for (int k = 0; k < in.n; k++) {
        Pack p[COUNT];
        UNROLL for (int j = 0; j < COUNT; j++) {
            const u8* from = in.at[k] + at + j * apart;
            p[j] = ALIGNED ? load_pack(from) : load_any(from);
        }
        i64 weight = OP == OP_AVG ? weights[k] : 1;
        UNROLL for (int j = 0; j < COUNT; j++) {
            UNROLL for (int i = 0; i < lanes; i++) {
                typename N::Wide x = term<N, OP>(lane<N>(p[j], i), weight);
                total[j][i] = k ? combine<N, OP>(total[j][i], x) : x;
            }
        }
    }
    UNROLL for (int j = 0; j < COUNT; j++) {
        Pack p;
        u64 here = at + j * apart;
        bool care = false;
        UNROLL for (int i = 0; i < lanes; i++) {
            typename N::Wide x = finished<N, OP>(total[j][i], weights);
            care = care || needs_care<N, OP>(x);
            set_lane<N>(p, i, N::bits(x));
        }
        if (care) mend<N, OP>(p, in, here, weights);
        for (int t = 0; t < out.n; t++) ALIGNED ? store_pack(out.at[t] + here, p) : store_any(out.at[t] + here, p);
    }
}

template <class N, int OP, bool ALIGNED>
DEVICE void fold_all(const Places& out, const Places& in, u64 packs, const Weights& weights, Team team) {
    // Halves take twice the registers; what is not aligned is slow anyway.
    const int count = !ALIGNED ? 1 : sizeof(typename N::Bits) == 2 ? PACKS / 2 : PACKS;
    u64 i = team.index;
    for (; i + (count - 1) * team.size < packs; i += count * team.size)
        fold_packs<N, OP, count, ALIGNED>(out, in, 16 * i, 16 * team.size, weights);
    if constexpr (count > 1) {
        for (; i < packs; i += team.size) fold_packs<N, OP, 1, ALIGNED>(out, in, 16 * i, 0, weights);
    }
}

// Every out[i] = the fold of all in[k][i]; a target is one of the operands or overlaps none. One operand is copied.
template <class N, int OP>
DEVICE void fold(const Places& out, const Places& in, u64 bytes, const Weights& weights, Team team) {
    if (in.n == 1) {
        for (int t = 0; t < out.n; t++) copy(out.at[t], in.at[0], bytes, team);
        return;
    }
    u64 packs = bytes / 16;
    if (aligned(in) && aligned(out))
        fold_all<N, OP, true>(out, in, packs, weights, team);
    else
        fold_all<N, OP, false>(out, in, packs, weights, team);
    const u64 size = sizeof(typename N::Bits);
    for (u64 at = 16 * packs + size * team.index; at < bytes; at += size * team.size) {
        typename N::Wide total = 0;
        for (int k = 0; k < in.n; k++) {
            typename N::Wide x = term<N, OP>(load_word<typename N::Bits>(in.at[k] + at), OP == OP_AVG ? weights[k] : 1);
            total = k ? combine<N, OP>(total, x) : x;
        }
        total = finished<N, OP>(total, weights);
        if constexpr (OP == OP_AVG) {
            if (needs_care<N, OP>(total)) total = careful_mean<N>(in, at, weights);
        }
        typename N::Bits bits = N::bits(total);
        for (int t = 0; t < out.n; t++) store_word<typename N::Bits>(out.at[t] + at, bits);
    }
}
