/*
 * CPU features by cpuid, and the number of cores.
 */
#if defined(__linux__)
#define _GNU_SOURCE /* sched_getaffinity: the cores of this process */
#include <sched.h>
#endif

#include "converter/base/cpu.h"

#include <limits.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Detected features, with a bit that says so; 0 before the first call. */
#define DETECTED (1u << 31)
static atomic_uint detected;
static atomic_uint allowed_mask = UINT_MAX;

#if defined(__x86_64__)
#define LEAF1_ECX_FMA (1u << 12)
#define LEAF1_ECX_F16C (1u << 29)
#define LEAF7_EBX_BMI2 (1u << 8)

static unsigned detect(void)
{
    unsigned a, b, c, d, found = 0;
    bool fma, f16c, bmi2;

    if (!__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    fma = (c & LEAF1_ECX_FMA) != 0;
    f16c = (c & LEAF1_ECX_F16C) != 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    bmi2 = (b & LEAF7_EBX_BMI2) != 0;
    /* These also ask whether the system saves the wide registers. */
    if (CPU_HAS("avx2") && fma && f16c && bmi2)
        found |= CPU_AVX2;
    if ((found & CPU_AVX2) != 0 && CPU_HAS("avx512f") && CPU_HAS("avx512bw") &&
        CPU_HAS("avx512dq") && CPU_HAS("avx512vl"))
        found |= CPU_AVX512;
    return found;
}
#elif defined(__aarch64__)
static unsigned detect(void)
{
    return CPU_NEON; /* part of the base architecture */
}
#else
static unsigned detect(void)
{
    return 0;
}
#endif

unsigned cpu_features(void)
{
    unsigned found = atomic_load_explicit(&detected, memory_order_relaxed);

    if (UNLIKELY(found == 0)) {
        found = detect() | DETECTED;
        atomic_store_explicit(&detected, found, memory_order_relaxed);
    }
    found &= atomic_load_explicit(&allowed_mask, memory_order_relaxed);
    return found & ~DETECTED;
}

void cpu_mask(unsigned allowed)
{
    atomic_store(&allowed_mask, allowed);
}

const struct cpu_level cpu_levels[CPU_LEVELS] = {
    { "scalar", 0 },
    { "avx2", CPU_AVX2 },
    { "avx512", CPU_AVX2 | CPU_AVX512 },
    { "neon", CPU_NEON },
};

int cpu_mask_by_name(const char *name, struct err *e)
{
    if (strcmp(name, "auto") == 0) {
        cpu_mask(UINT_MAX);
        return 0;
    }
    for (size_t i = 0; i < CPU_LEVELS; i++)
        if (strcmp(name, cpu_levels[i].name) == 0) {
            cpu_mask(cpu_levels[i].mask);
            return 0;
        }
    return err_set(e, ERR_USAGE,
                   "'%s' is no instruction set: auto, scalar, avx2, avx512 "
                   "or neon",
                   name);
}

int cpu_count(void)
{
    long n;

#if defined(__linux__)
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
#endif
    n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > 1024 ? 1024 : (int)n;
}
