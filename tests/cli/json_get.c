/*
 * json_get FILE [PATH]: parses FILE strictly and prints the value at PATH
 * ("a.b.0.c"), or nothing without one. For the tests of --json output.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "converter/base/json.h"
#include "converter/base/num.h"

static const struct js_node *step(const struct js_node *n, const char *name)
{
    uint64_t index;

    if (!n || js_kind(n) != JS_ARRAY)
        return js_get(n, name);
    if (!num_parse_u64(name, strlen(name), &index))
        return NULL;
    for (n = js_first(n); n && index; index--)
        n = js_next(n);
    return n;
}

static const struct js_node *walk(const struct js_node *n, const char *path)
{
    while (n && *path) {
        char name[256];
        size_t len = strcspn(path, ".");

        if (len >= sizeof(name))
            return NULL;
        memcpy(name, path, len);
        name[len] = '\0';
        n = step(n, name);
        path += len + (path[len] == '.');
    }
    return n;
}

static void print(const struct js_doc *d, const struct js_node *n)
{
    const char *s;
    size_t begin, end;

    if (js_string(n, &s)) {
        printf("%s\n", s);
        return;
    }
    js_span(d, n, &begin, &end);
    s = js_text(d, &end);
    js_span(d, n, &begin, &end);
    printf("%.*s\n", (int)(end - begin), s + begin);
}

int main(int argc, char **argv)
{
    struct err e = ERR_INIT;
    const struct js_node *n;
    struct js_doc *d;
    int rc = 0;

    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: json_get FILE [PATH]\n");
        return EXIT_USAGE;
    }
    d = js_read_file(argv[1], 100000000, &e);
    if (!d) {
        fprintf(stderr, "json_get: %s\n", e.text);
        return EXIT_BAD_INPUT;
    }
    n = walk(js_root(d), argc == 3 ? argv[2] : "");
    if (!n) {
        fprintf(stderr, "json_get: '%s' has no '%s'\n", argv[1], argv[2]);
        rc = EXIT_CHECK_FAILED;
    } else if (argc == 3) {
        print(d, n);
    }
    js_free(d);
    return rc;
}
