/*
 * Shared by err.c and log.c: text that reaches a terminal.
 */
#ifndef BASE_ERR_PRIV_H
#define BASE_ERR_PRIV_H

/* Replaces control characters, C1 ones in UTF-8 too, by '?': names in files
 * are not trusted with a terminal. Line ends and tabs stay. */
void err_tame(char *text);

#endif
