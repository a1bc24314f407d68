/*
 * SHA-256 (FIPS 180-4) and Base64 (RFC 4648), for formats that ask for them.
 */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define SHA256_BYTES 32

void sha256(const void *p, size_t n, uint8_t out[SHA256_BYTES]);

/* Characters of n bytes in Base64, with padding, and NUL. */
#define BASE64_MAX(n) (((n) + 2) / 3 * 4 + 1)
void base64(const void *p, size_t n, char *out);

#endif
