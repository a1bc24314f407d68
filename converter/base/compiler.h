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
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#define ATTR_PRINTF(fmt, args)
#define ATTR_MUST_USE
#define ATTR_NORETURN
#define ATTR_UNUSED
#define ATTR_TARGET(isa)
#define LIKELY(x) (x)
#define UNLIKELY(x) (x)
#endif

#endif
