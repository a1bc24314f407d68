/*
 * Compiler attributes, in one place: the only file that uses GNU syntax.
 */
#ifndef BASE_COMPILER_H
#define BASE_COMPILER_H

#if defined(__GNUC__) || defined(__clang__)
#define ATTR_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define ATTR_MUST_USE __attribute__((warn_unused_result))
#define ATTR_NORETURN __attribute__((noreturn))
#define ATTR_UNUSED __attribute__((unused))
/* Compile one function for an instruction set that the rest does not use. */
#define ATTR_TARGET(isa) __attribute__((target(isa)))
/* On x86: the processor has it and the system saves its registers. */
#define CPU_HAS(isa) __builtin_cpu_supports(isa)
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#define ATTR_PRINTF(fmt, args)
#define ATTR_MUST_USE
#define ATTR_NORETURN
#define ATTR_UNUSED
#define ATTR_TARGET(isa)
#define CPU_HAS(isa) 0
#define LIKELY(x) (x)
#define UNLIKELY(x) (x)
#endif

/* Red zones: marks bytes as not to be touched under AddressSanitizer. */
#if defined(__SANITIZE_ADDRESS__)
#define HAVE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_ASAN 1
#endif
#endif
#if defined(HAVE_ASAN)
#include <sanitizer/asan_interface.h>
#define ASAN_POISON(p, n) __asan_poison_memory_region((p), (n))
#define ASAN_UNPOISON(p, n) __asan_unpoison_memory_region((p), (n))
#define ASAN_GAP 32
#else
#define ASAN_POISON(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON(p, n) ((void)(p), (void)(n))
#define ASAN_GAP 0
#endif

#endif
