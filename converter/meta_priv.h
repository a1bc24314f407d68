/*
 * Between meta.c and meta_read.c.
 */
#ifndef CONVERTER_META_PRIV_H
#define CONVERTER_META_PRIV_H

/* The start of the comment that ends a meta.yaml of ours. */
#define META_SIGNATURE "# written by anemll-convert"

#endif
