/*
 * Opening: one file, or a directory whose index names the shards.
 *
 * The index (`model.safetensors.index.json`) is an object with a
 * `weight_map` from tensor to file name. It alone names the files and decides
 * between copies; its `metadata.total_size` is advisory and never looked at.
 * All shards are opened and their sizes compared with their headers before
 * st_open returns.
 */
#include "safetensors/st_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "converter/base/json.h"

#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"
#define INDEX_MAX_BYTES ST_MAX_HEADER

/* Lines of one kind before "and N more". */
#define NOTES_PER_KIND 16

/* The index while it is used; views into the document. */
struct index {
    struct js_doc *doc;
    const struct js_node *map;
    const char **files; /* names of shards, sorted; position = shard */
    size_t n_files;
};

/* What is counted while copies are weighed against each other. */
struct tally {
    size_t copies, unmapped, misplaced;
};

static int add_note(struct st *s, const char *text, struct err *e)
{
    if (!text || mem_grow((void **)&s->notes, &s->cap_notes, s->n_notes,
                          sizeof *s->notes, e))
        return -1;
    s->notes[s->n_notes++] = text;
    return 0;
}

/* Far below: what filters of a file system may save stays unmarked. */
static bool has_holes(const struct io_file *f)
{
    struct stat st;

    if (fstat(f->fd, &st) || st.st_blocks < 0)
        return false;
    return f->size > 65536 && (uint64_t)st.st_blocks * 512 < f->size / 2;
}

static int add_shard(struct st *s, const char *path, struct err *e)
{
    struct st_shard *f = &s->shards[s->n_shards];

    if (io_open_input(&f->file, path, e))
        return -1;
    s->n_shards++;
    f->sparse = has_holes(&f->file);
    return st_header_load(s, (int)s->n_shards - 1, e);
}

static int alloc_shards(struct st *s, size_t n, struct err *e)
{
    static const struct io_file closed = IO_FILE_INIT;

    s->shards = mem_zalloc(n, sizeof *s->shards, e);
    if (!s->shards)
        return -1;
    for (size_t i = 0; i < n; i++)
        s->shards[i].file = closed;
    return 0;
}

static int by_name(const void *pa, const void *pb)
{
    const struct st_tensor *a = pa, *b = pb;
    int c = strcmp(a->name, b->name);

    return c ? c : a->shard - b->shard;
}

static int by_text(const void *pa, const void *pb)
{
    const char *const *a = pa, *const *b = pb;

    return strcmp(*a, *b);
}

static void sort_tensors(struct st *s)
{
    if (s->n)
        qsort(s->tensors, s->n, sizeof *s->tensors, by_name);
    s->data_bytes = 0;
    for (size_t i = 0; i < s->n; i++)
        s->data_bytes += s->tensors[i].end - s->tensors[i].begin;
}

static int open_single(struct st *s, const char *path, struct err *e)
{
    if (alloc_shards(s, 1, e) || add_shard(s, path, e))
        return -1;
    sort_tensors(s);
    return 0;
}

static int check_map_entry(const struct js_node *n, struct err *e)
{
    const char *file;

    if (!js_string(n, &file))
        return err_set(e, ERR_INPUT,
                       "weight_map: " ST_NAME
                       " is mapped to %s, must be a file name",
                       js_key(n), js_kind_name(js_kind(n)));
    if (!io_is_component(file))
        return err_set(e, ERR_INPUT,
                       "weight_map: " ST_NAME " is mapped to " ST_NAME
                       ", must be a plain file name in the same directory",
                       js_key(n), file);
    return 0;
}

/* The distinct file names of the map. */
static int list_files(struct index *x, struct err *e)
{
    size_t n = 0;

    x->files = mem_alloc(js_count(x->map), sizeof *x->files, e);
    if (!x->files)
        return -1;
    for (const struct js_node *m = js_first(x->map); m; m = js_next(m)) {
        if (check_map_entry(m, e))
            return -1;
        if (js_string(m, &x->files[n]))
            n++;
    }
    if (n)
        qsort(x->files, n, sizeof *x->files, by_text);
    for (size_t i = 0; i < n; i++)
        if (!i || strcmp(x->files[i], x->files[x->n_files - 1]))
            x->files[x->n_files++] = x->files[i];
    return 0;
}

static int parse_index(struct index *x, struct err *e)
{
    const struct js_node *root = js_root(x->doc);

    if (js_kind(root) != JS_OBJECT)
        return err_set(e, ERR_INPUT, "is %s, must be an object",
                       js_kind_name(js_kind(root)));
    x->map = js_get(root, "weight_map");
    if (!x->map)
        return err_set(e, ERR_INPUT, "no 'weight_map'");
    if (js_kind(x->map) != JS_OBJECT)
        return err_set(e, ERR_INPUT, "'weight_map' is %s, must be an object",
                       js_kind_name(js_kind(x->map)));
    if (!js_count(x->map))
        return err_set(e, ERR_INPUT, "'weight_map' names no tensor");
    return list_files(x, e);
}

static void release_index(struct index *x)
{
    mem_free(x->files);
    js_free(x->doc);
}

static int read_index(struct index *x, const char *path, struct err *e)
{
    x->doc = js_read_file(path, INDEX_MAX_BYTES, e);
    if (!x->doc)
        return -1;
    if (parse_index(x, e))
        return err_in(e, "index '%s'", path);
    return 0;
}

/* Position of a file name, or -1. */
static int find_file(const struct index *x, const char *name)
{
    const char **hit =
        bsearch(&name, x->files, x->n_files, sizeof *x->files, by_text);

    return hit ? (int)(hit - x->files) : -1;
}

/* All absent shards in one error. */
static int check_present(const char *dir, const struct index *x, struct err *e)
{
    struct buf list = BUF_INIT;
    size_t absent = 0;
    int rc = 0;

    for (size_t i = 0; i < x->n_files && !rc; i++) {
        char *path = io_join(dir, x->files[i], e);
        if (!path) {
            rc = -1;
        } else if (!io_exists(path) && absent++ < NOTES_PER_KIND) {
            buf_printf(&list, "%s" ST_NAME, absent > 1 ? ", " : "",
                       x->files[i]);
        }
        mem_free(path);
    }
    if (!rc && absent)
        rc = err_set(e, ERR_INPUT,
                     "'%s': %zu of the %zu files that " INDEX_NAME
                     " names %s missing: %s%s; download %s",
                     dir, absent, x->n_files, absent == 1 ? "is" : "are",
                     buf_text(&list), absent > NOTES_PER_KIND ? ", ..." : "",
                     absent == 1 ? "it" : "them");
    buf_release(&list);
    return rc;
}

static const char *shard_name(const struct st *s, int shard)
{
    return io_basename(s->shards[shard].file.path);
}

/* Where the index wants this tensor, or -1 if it does not say. */
static int mapped_shard(const struct index *x, const char *name)
{
    const char *file;

    if (!js_string(js_get(x->map, name), &file))
        return -1;
    return find_file(x, file);
}

static int note_copy(struct st *s, struct tally *n, const char *name, int kept,
                     int dropped, struct err *e)
{
    if (n->copies++ >= NOTES_PER_KIND)
        return 0;
    return add_note(s,
                    arena_printf(&s->arena, e,
                                 ST_NAME " is in " ST_NAME " and " ST_NAME
                                         ", using " ST_NAME
                                         " as the index says",
                                 name, shard_name(s, kept),
                                 shard_name(s, dropped), shard_name(s, kept)),
                    e);
}

static int note_unmapped(struct st *s, struct tally *n, const char *name,
                         int shard, struct err *e)
{
    if (n->unmapped++ >= NOTES_PER_KIND)
        return 0;
    return add_note(s,
                    arena_printf(&s->arena, e,
                                 ST_NAME " is in " ST_NAME
                                         ", not in the index; using it",
                                 name, shard_name(s, shard)),
                    e);
}

static int note_misplaced(struct st *s, struct tally *n, const char *name,
                          int wanted, int found, struct err *e)
{
    if (n->misplaced++ >= NOTES_PER_KIND)
        return 0;
    return add_note(s,
                    arena_printf(&s->arena, e,
                                 ST_NAME " is in " ST_NAME
                                         ", but the index maps it to " ST_NAME
                                         ", which lacks it; not used",
                                 name, shard_name(s, found),
                                 shard_name(s, wanted)),
                    e);
}

static int note_rest(struct st *s, size_t count, const char *what,
                     struct err *e)
{
    if (count <= NOTES_PER_KIND)
        return 0;
    return add_note(s,
                    arena_printf(&s->arena, e, "and %zu more tensors %s",
                                 count - NOTES_PER_KIND, what),
                    e);
}

/* Decides between the tensors [i, end) of one name. Returns the index of the
 * one to keep, `end` for none, or -1 cast to size_t with an error. */
#define CHOOSE_FAILED ((size_t)-1)
static size_t choose(struct st *s, const struct index *x, size_t i, size_t end,
                     struct tally *n, struct err *e)
{
    const struct st_tensor *t = s->tensors;
    int wanted = mapped_shard(x, t[i].name);
    size_t keep = end;

    if (wanted < 0 && end - i > 1) {
        err_set(e, ERR_INPUT,
                "tensor " ST_NAME " is in " ST_NAME " and " ST_NAME
                " and the index says not which one counts",
                t[i].name, shard_name(s, t[i].shard),
                shard_name(s, t[i + 1].shard));
        return CHOOSE_FAILED;
    }
    if (wanted < 0)
        return note_unmapped(s, n, t[i].name, t[i].shard, e) ? CHOOSE_FAILED
                                                             : i;
    for (size_t k = i; k < end; k++)
        if (t[k].shard == wanted)
            keep = k;
    for (size_t k = i; k < end; k++) {
        if (k == keep)
            continue;
        if (keep < end ? note_copy(s, n, t[k].name, wanted, t[k].shard, e)
                       : note_misplaced(s, n, t[k].name, wanted, t[k].shard, e))
            return CHOOSE_FAILED;
    }
    return keep;
}

/* One tensor per name stays: the one that the index means. */
static int drop_copies(struct st *s, const struct index *x, struct err *e)
{
    struct tally n = { 0, 0, 0 };
    size_t kept = 0;

    for (size_t i = 0, end; i < s->n; i = end) {
        size_t k;
        for (end = i + 1; end < s->n; end++)
            if (strcmp(s->tensors[i].name, s->tensors[end].name) != 0)
                break;
        k = choose(s, x, i, end, &n, e);
        if (k == CHOOSE_FAILED)
            return -1;
        if (k < end)
            s->tensors[kept++] = s->tensors[k];
    }
    s->n = kept;
    sort_tensors(s);
    if (note_rest(s, n.copies, "in two files", e) ||
        note_rest(s, n.unmapped, "not in the index", e) ||
        note_rest(s, n.misplaced, "not where the index says", e))
        return -1;
    return 0;
}

static int list_missing(struct st *s, const struct index *x, struct err *e)
{
    for (const struct js_node *m = js_first(x->map); m; m = js_next(m)) {
        struct st_missing *miss;
        if (st_find(s, js_key(m)))
            continue;
        if (mem_grow((void **)&s->missing, &s->cap_missing, s->n_missing,
                     sizeof *s->missing, e))
            return -1;
        miss = &s->missing[s->n_missing];
        miss->shard = mapped_shard(x, js_key(m));
        miss->name = arena_strdup(&s->arena, js_key(m), e);
        if (!miss->name)
            return -1;
        s->n_missing++;
    }
    return 0;
}

static int open_shards(struct st *s, const char *dir, const struct index *x,
                       struct err *e)
{
    if (x->n_files > INT16_MAX)
        return err_set(e, ERR_UNSUPPORTED,
                       "'%s': the index names %zu files, at most %d are taken",
                       dir, x->n_files, INT16_MAX);
    if (check_present(dir, x, e) || alloc_shards(s, x->n_files, e))
        return -1;
    for (size_t i = 0; i < x->n_files; i++) {
        char *path = io_join(dir, x->files[i], e);
        int rc = path ? add_shard(s, path, e) : -1;
        mem_free(path);
        if (rc)
            return -1;
    }
    sort_tensors(s);
    if (drop_copies(s, x, e))
        return err_in(e, "'%s'", dir);
    return list_missing(s, x, e);
}

/* Both are there. A file that the index names is a shard like any other;
 * otherwise the single file is the model, as for transformers. */
static int open_both(struct st *s, const char *dir, const char *single,
                     const char *index_path, struct err *e)
{
    struct index x = { 0, 0, 0, 0 };
    struct err why = ERR_INIT;
    int rc;

    if (read_index(&x, index_path, &why) && why.code != ERR_INPUT &&
        why.code != ERR_UNSUPPORTED) {
        rc = err_copy(e, &why);
    } else if (why.code != ERR_OK) {
        rc = open_single(s, single, e);
        if (!rc)
            rc = add_note(s,
                          arena_printf(&s->arena, e,
                                       "using '" SINGLE_NAME
                                       "'; the index beside it is not used "
                                       "and broken: %s",
                                       why.text),
                          e);
    } else if (find_file(&x, SINGLE_NAME) >= 0) {
        rc = open_shards(s, dir, &x, e);
    } else {
        rc = open_single(s, single, e);
        if (!rc)
            rc = add_note(s,
                          arena_strdup(&s->arena,
                                       "using '" SINGLE_NAME
                                       "'; the index beside it names other "
                                       "files and is not used",
                                       e),
                          e);
    }
    release_index(&x);
    return rc;
}

static int open_dir(struct st *s, const char *dir, struct err *e)
{
    struct index x = { 0, 0, 0, 0 };
    char *single = io_join(dir, SINGLE_NAME, e);
    char *index_path = io_join(dir, INDEX_NAME, e);
    int rc = -1;

    if (!single || !index_path)
        goto out;
    if (io_exists(single) && io_exists(index_path)) {
        rc = open_both(s, dir, single, index_path, e);
    } else if (io_exists(single)) {
        rc = open_single(s, single, e);
    } else if (io_exists(index_path)) {
        if (!read_index(&x, index_path, e))
            rc = open_shards(s, dir, &x, e);
        release_index(&x);
    } else {
        err_set(e, ERR_INPUT,
                "'%s' has neither " SINGLE_NAME " nor " INDEX_NAME, dir);
    }
out:
    mem_free(single);
    mem_free(index_path);
    return rc;
}

struct st *st_open(const char *path, struct err *e)
{
    struct st *s = mem_zalloc(1, sizeof *s, e);

    if (!s)
        return NULL;
    if (io_is_dir(path) ? open_dir(s, path, e) : open_single(s, path, e)) {
        st_close(s);
        return NULL;
    }
    return s;
}

void st_close(struct st *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_shards; i++)
        io_close(&s->shards[i].file);
    mem_free(s->shards);
    mem_free(s->tensors);
    mem_free(s->notes);
    mem_free(s->missing);
    arena_release(&s->arena);
    mem_free(s);
}

size_t st_count(const struct st *s)
{
    return s->n;
}

const struct st_tensor *st_at(const struct st *s, size_t i)
{
    return i < s->n ? &s->tensors[i] : NULL;
}

const struct st_tensor *st_find(const struct st *s, const char *name)
{
    size_t lo = 0, hi = s->n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(name, s->tensors[mid].name);
        if (!c)
            return &s->tensors[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

size_t st_shard_count(const struct st *s)
{
    return s->n_shards;
}

const char *st_shard_path(const struct st *s, int shard)
{
    return s->shards[shard].file.path;
}

bool st_shard_sparse(const struct st *s, int shard)
{
    return s->shards[shard].sparse;
}

bool st_sparse(const struct st *s)
{
    for (size_t i = 0; i < s->n_shards; i++)
        if (s->shards[i].sparse)
            return true;
    return false;
}

uint64_t st_data_bytes(const struct st *s)
{
    return s->data_bytes;
}

size_t st_note_count(const struct st *s)
{
    return s->n_notes;
}

const char *st_note(const struct st *s, size_t i)
{
    return i < s->n_notes ? s->notes[i] : NULL;
}

size_t st_missing_count(const struct st *s)
{
    return s->n_missing;
}

const char *st_missing_name(const struct st *s, size_t i, int *shard)
{
    if (i >= s->n_missing)
        return NULL;
    if (shard)
        *shard = s->missing[i].shard;
    return s->missing[i].name;
}
