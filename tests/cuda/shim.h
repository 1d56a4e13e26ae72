// What device.cuh gives to kernels, on a CPU: a thread for each thread of a block, barriers, atomics, plain memory.
// One source, two compilers: what runs here is what runs on a device, but for the instructions that the names stand for.
#pragma once
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>
#include <sched.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef unsigned long long u64;
typedef int32_t i32;
typedef long long i64;

#define __global__
#define __launch_bounds__(...)
#define DEVICE inline
#define SHARED(type, name) type& name = *static_cast<type*>(here->shared(__COUNTER__, sizeof(type)))
#define ARGUMENT(type) const type&
#define UNROLL
#define ROLLED

struct alignas(16) Pack {
    u32 w[4];
};

// ------------------------------------------------------------ threads, blocks, grids
struct Dim {
    unsigned x = 1;
};

struct BlockOnCpu {
    static const int PLACES = 512, PLACE_BYTES = 1024;
    explicit BlockOnCpu(unsigned threads) : barrier(threads), memory(new u8[PLACES * PLACE_BYTES]) {}
    void* shared(int place, size_t bytes) {
        if (place >= PLACES || bytes > PLACE_BYTES) abort();
        return memory.get() + place * PLACE_BYTES;
    }
    std::barrier<> barrier;
    std::unique_ptr<u8[]> memory;  // undefined, as a device's
};

inline thread_local Dim threadIdx, blockIdx, blockDim, gridDim;
inline thread_local BlockOnCpu* here;

inline void __syncthreads() { here->barrier.arrive_and_wait(); }

// Run a kernel to its end.
template <class Kernel>
void launch(unsigned grid, unsigned threads, Kernel kernel) {
    std::vector<std::unique_ptr<BlockOnCpu>> blocks;
    std::vector<std::thread> all;
    for (unsigned b = 0; b < grid; b++) blocks.push_back(std::make_unique<BlockOnCpu>(threads));
    for (unsigned b = 0; b < grid; b++) {
        for (unsigned t = 0; t < threads; t++) {
            all.emplace_back([=, block = blocks[b].get()] {
                threadIdx.x = t, blockIdx.x = b, blockDim.x = threads, gridDim.x = grid, here = block;
                kernel();
                block->barrier.arrive_and_drop();  // threads of a block may return apart
            });
        }
    }
    for (std::thread& thread : all) thread.join();
}

// ------------------------------------------------------------ words that others see
inline u32 load_acquire(const u32* at) { return std::atomic_ref(*const_cast<u32*>(at)).load(std::memory_order_acquire); }
inline u32 load_relaxed(const u32* at) { return std::atomic_ref(*const_cast<u32*>(at)).load(std::memory_order_relaxed); }
inline void store_release(u32* at, u32 value) { std::atomic_ref(*at).store(value, std::memory_order_release); }
inline u32 compare_and_swap(u32* at, u32 expected, u32 value) {
    std::atomic_ref(*at).compare_exchange_strong(expected, value);
    return expected;
}
inline u32 add_and_fetch(u32* at, u32 value) { return std::atomic_ref(*at).fetch_add(value) + value; }
inline u64 nanoseconds() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
inline void give_way() { sched_yield(); }

// ------------------------------------------------------------ memory; a pack must be aligned, as it must be there
inline Pack load_pack(const u8* at) { return *reinterpret_cast<const Pack*>(__builtin_assume_aligned(at, 16)); }
inline void store_pack(u8* at, const Pack& p) { *reinterpret_cast<Pack*>(at) = p; }
template <class Word>
Word load_word(const u8* at) {
    if (reinterpret_cast<u64>(at) % sizeof(Word)) abort();
    return *reinterpret_cast<const Word*>(at);
}
template <class Word>
void store_word(u8* at, Word value) {
    if (reinterpret_cast<u64>(at) % sizeof(Word)) abort();
    *reinterpret_cast<Word*>(at) = value;
}

// ------------------------------------------------------------ numbers
template <class To, class From>
To same_bits(From x) {
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
inline float as_float(u32 bits) { return same_bits<float>(bits); }
inline u32 as_bits(float x) { return same_bits<u32>(x); }
inline double as_double(u64 bits) { return same_bits<double>(bits); }
inline u64 as_bits(double x) { return same_bits<u64>(x); }
inline float add(float x, float y) { return x + y; }
inline double add(double x, double y) { return x + y; }
inline float multiply(float x, float y) { return x * y; }
inline double multiply(double x, double y) { return x * y; }
inline float divide(float x, float y) { return x / y; }
inline double divide(double x, double y) { return x / y; }
inline float half_to_float(u32 bits) { return same_bits<_Float16>(static_cast<u16>(bits)); }
inline u32 float_to_half(float x) { return same_bits<u16>(static_cast<_Float16>(x)); }
