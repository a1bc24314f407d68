/*
 * CPU features: what is there, and the mask that tests and --cpu lay over it.
 */
#ifndef BASE_CPU_H
#define BASE_CPU_H

#include "converter/base/err.h"

enum cpu_feature {
    CPU_AVX2 = 1 << 0,   /* AVX2, FMA, F16C and BMI2 together */
    CPU_AVX512 = 1 << 1, /* AVX-512 F, BW, DQ, VL on top */
    CPU_NEON = 1 << 2,
};

/* Detected and allowed. Cheap: may be asked per call. */
unsigned cpu_features(void);
/* Allows only these. For main() and tests, before threads start. */
void cpu_mask(unsigned allowed);
/* Every instruction set, from portable C up: its name and the features that it
 * is. */
struct cpu_level {
    const char *name;
    unsigned mask;
};
enum { CPU_LEVELS = 4 };
extern const struct cpu_level cpu_levels[CPU_LEVELS];
/* The name of one of these, or "auto". Returns 0 or -1 (ERR_USAGE). */
int cpu_mask_by_name(const char *name, struct err *e);
/* Cores that this process may use. */
int cpu_count(void);

#endif
