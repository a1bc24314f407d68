/*
 * Rotary position settings from every generation of config.json:
 * `rope_theta` with `rope_scaling` (older), `rope_parameters` (newer), the
 * latter also keyed by layer type. Computed types: default, linear, llama3,
 * yarn; any other is refused by name, because a type that is read and not
 * applied is fluent on short prompts and wrong on long ones.
 *
 * Precedence as transformers: a non-empty `rope_scaling` replaces
 * `rope_parameters`; a value inside the object wins over the same key beside
 * it; then the class default. In families that rotate each kind of layer in
 * its own way, `rope_parameters` is keyed by layer type, and beside it stand
 * the thetas of older files.
 */
#include "models/hparams_priv.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "converter/base/num.h"

const char *rope_type_name(enum rope_type t)
{
    switch (t) {
    case ROPE_DEFAULT: return "default";
    case ROPE_LINEAR: return "linear";
    case ROPE_LLAMA3: return "llama3";
    case ROPE_YARN: return "yarn";
    case ROPE_PROPORTIONAL: return "proportional";
    }
    return "?";
}

struct rope_src {
    const struct hp_reader *r;
    const struct js_node *object; /* NULL: top-level keys only */
    const char *by;               /* name of the object */
};

/* A finite number in (min, max], inside the object or beside it; *out keeps
 * its value when there is none. */
static int rope_number(const struct rope_src *s, const char *key, bool beside,
                       double min, double *out, bool *found, struct err *e)
{
    const struct js_node *n = hp_value(s->object, key);
    char t[NUM_TEXT_MAX], u[NUM_TEXT_MAX];
    double d;

    if (!n && beside)
        n = hp_value(s->r->text, key);
    if (found)
        *found = n != NULL;
    if (!n)
        return 0;
    if (!js_double(n, &d))
        return hp_type_error(n, key, "a number", e);
    num_text(t, d);
    num_text(u, min);
    if (!isfinite(d) || !(d > min) || d > 1e15)
        return err_set(e, ERR_INPUT,
                       "'%s' is %s, allowed are numbers above %s up to 1e15",
                       key, t, u);
    *out = d;
    return 0;
}

static int rope_required(const struct rope_src *s, const char *type,
                         const char *key, double min, double *out,
                         struct err *e)
{
    bool found;

    if (rope_number(s, key, false, min, out, &found, e))
        return -1;
    if (!found)
        return err_set(e, ERR_INPUT, "%s of type '%s' has no '%s'", s->by, type,
                       key);
    return 0;
}

static int rope_factor(const struct rope_src *s, const char *type,
                       struct rope_params *p, struct err *e)
{
    if (rope_required(s, type, "factor", 0, &p->factor, e))
        return -1;
    if (p->factor < 1) {
        char t[NUM_TEXT_MAX];
        num_text(t, p->factor);
        return err_set(e, ERR_INPUT,
                       "'factor' of %s is %s, 1 or more is "
                       "needed",
                       s->by, t);
    }
    return 0;
}

static int rope_llama3(const struct rope_src *s, struct rope_params *p,
                       struct err *e)
{
    bool found;

    if (rope_factor(s, "llama3", p, e) ||
        rope_required(s, "llama3", "low_freq_factor", 0, &p->low_freq_factor,
                      e) ||
        rope_required(s, "llama3", "high_freq_factor", 0, &p->high_freq_factor,
                      e) ||
        rope_number(s, "original_max_position_embeddings", true, 0,
                    &p->original_max, &found, e))
        return -1;
    if (!found)
        return err_set(e, ERR_INPUT,
                       "%s of type 'llama3' has no "
                       "'original_max_position_embeddings'",
                       s->by);
    if (!(p->high_freq_factor > p->low_freq_factor))
        return err_set(e, ERR_INPUT,
                       "%s of type 'llama3' needs high_freq_factor above "
                       "low_freq_factor",
                       s->by);
    return 0;
}

/* yarn's temperature for one mscale. */
static double yarn_mscale(double factor, double m)
{
    return factor <= 1 ? 1.0 : 0.1 * m * log(factor) + 1.0;
}

/* A number that Python's truth test accepts: present and not 0. */
static int truthy_number(const struct rope_src *s, const char *key, double *out,
                         bool *found, struct err *e)
{
    const struct js_node *n = hp_value(s->object, key);

    *found = false;
    if (!n)
        return 0;
    if (!js_double(n, out))
        return hp_type_error(n, key, "a number", e);
    if (!isfinite(*out))
        return err_set(e, ERR_INPUT, "'%s' is not a finite number", key);
    *found = *out != 0;
    return 0;
}

static int yarn_scaling(const struct rope_src *s, struct rope_params *p,
                        struct err *e)
{
    double given, m, all;
    bool has_given, has_m, has_all;

    if (rope_number(s, "attention_factor", false, 0, &given, &has_given, e) ||
        truthy_number(s, "mscale", &m, &has_m, e) ||
        truthy_number(s, "mscale_all_dim", &all, &has_all, e))
        return -1;
    if (has_given)
        p->attention_scaling = given;
    else if (has_m && has_all)
        p->attention_scaling =
            yarn_mscale(p->factor, m) / yarn_mscale(p->factor, all);
    else
        p->attention_scaling = yarn_mscale(p->factor, 1);
    if (!isfinite(p->attention_scaling) || !(p->attention_scaling > 0))
        return err_set(e, ERR_INPUT,
                       "'mscale' and 'mscale_all_dim' of %s give no positive "
                       "scaling",
                       s->by);
    return 0;
}

static int yarn_band(const struct rope_src *s, struct rope_params *p,
                     struct err *e)
{
    const struct js_node *n = hp_value(s->object, "truncate");
    double v;
    bool found;

    p->beta_fast = 32;
    p->beta_slow = 1;
    p->truncate = true;
    if (truthy_number(s, "beta_fast", &v, &found, e))
        return -1;
    if (found)
        p->beta_fast = v;
    if (truthy_number(s, "beta_slow", &v, &found, e))
        return -1;
    if (found)
        p->beta_slow = v;
    if (!(p->beta_slow > 0) || !(p->beta_fast > p->beta_slow))
        return err_set(e, ERR_INPUT,
                       "%s of type 'yarn' needs beta_fast above beta_slow "
                       "above 0",
                       s->by);
    if (n && !js_bool(n, &p->truncate))
        return hp_type_error(n, "truncate", "true or false", e);
    return 0;
}

static void yarn_note(const struct rope_src *s, const struct hparams *hp)
{
    const struct rope_params *p = &hp->rope;
    double ratio = (double)hp->max_positions / p->original_max;
    char f[NUM_TEXT_MAX], o[NUM_TEXT_MAX], a[NUM_TEXT_MAX], q[NUM_TEXT_MAX];

    num_text(f, p->factor);
    num_text(o, p->original_max);
    num_text(a, p->attention_scaling);
    num_text(q, ratio);
    hp_note(s->r,
            "rope yarn: factor %s over %s original positions, cos and sin "
            "times %s",
            f, o, a);
    if (ratio != p->factor)
        hp_note(s->r,
                "rope yarn: max_position_embeddings over the original ones "
                "is %s; the written factor %s counts",
                q, f);
}

static int rope_yarn(const struct rope_src *s, struct hparams *hp,
                     struct err *e)
{
    struct rope_params *p = &hp->rope;
    bool found;

    p->original_max = (double)hp->max_positions;
    if (rope_number(s, "original_max_position_embeddings", true, 0,
                    &p->original_max, NULL, e) ||
        rope_number(s, "factor", false, 0, &p->factor, &found, e))
        return -1;
    if (!found)
        p->factor = (double)hp->max_positions / p->original_max;
    if (p->factor < 1) {
        char t[NUM_TEXT_MAX];
        num_text(t, p->factor);
        return err_set(e, ERR_INPUT,
                       "the yarn factor of %s is %s, 1 or more is needed",
                       s->by, t);
    }
    if (yarn_band(s, p, e) || yarn_scaling(s, p, e))
        return -1;
    yarn_note(s, hp);
    return 0;
}

static int rope_type(const struct rope_src *s, const char **type, struct err *e)
{
    const char *key = "rope_type";
    const struct js_node *n = hp_value(s->object, key);

    if (!n)
        n = hp_value(s->object, key = "type");
    *type = "default";
    if (n && !js_string(n, type))
        return hp_type_error(n, key, "a string", e);
    return 0;
}

static int rope_by_type(const struct rope_src *s, struct hparams *hp,
                        struct err *e)
{
    const char *type;
    char t[HP_CLEAN_MAX];

    if (rope_type(s, &type, e))
        return -1;
    /* Text has one position stream, where M-RoPE equals the default. */
    if (!strcmp(type, "default") || !strcmp(type, "mrope"))
        return 0;
    if (!strcmp(type, "linear")) {
        hp->rope.type = ROPE_LINEAR;
        return rope_factor(s, "linear", &hp->rope, e);
    }
    if (!strcmp(type, "llama3")) {
        hp->rope.type = ROPE_LLAMA3;
        return rope_llama3(s, &hp->rope, e);
    }
    if (!strcmp(type, "yarn")) {
        hp->rope.type = ROPE_YARN;
        return rope_yarn(s, hp, e);
    }
    return err_set(e, ERR_UNSUPPORTED,
                   "rope type '%s' in %s is not computed for %s (default, "
                   "linear, llama3 and yarn are)",
                   hp_clean(t, type), s->by, hp->arch->name);
}

/* Chooses the object that speaks: see the head of this file. */
static int rope_object(struct rope_src *s, struct err *e)
{
    const struct js_node *old = hp_value(s->r->text, "rope_scaling");
    const struct js_node *now = hp_value(s->r->text, "rope_parameters");
    const struct js_node *n, *full;

    if (old && js_kind(old) != JS_OBJECT)
        return hp_type_error(old, "rope_scaling", "an object or null", e);
    if (now && js_kind(now) != JS_OBJECT)
        return hp_type_error(now, "rope_parameters", "an object or null", e);
    if (old && js_count(old)) {
        s->object = old;
        s->by = "rope_scaling";
        return 0;
    }
    s->object = now;
    s->by = "rope_parameters";
    for (n = js_first(now); n && js_kind(n) != JS_OBJECT;)
        n = js_next(n);
    if (!n)
        return 0;
    /* Keyed by layer type; only full_attention rotates here. */
    full = hp_value(now, "full_attention");
    if (!full || js_kind(full) != JS_OBJECT)
        return err_set(e, ERR_INPUT,
                       "'rope_parameters' is keyed by layer type and has no "
                       "object 'full_attention'");
    s->object = full;
    return 0;
}

static int rope_theta(const struct rope_src *s, struct hparams *hp,
                      double class_theta, struct err *e)
{
    char t[NUM_TEXT_MAX];
    bool found;

    hp->rope.theta = class_theta;
    if (rope_number(s, "rope_theta", false, 1, &hp->rope.theta, &found, e))
        return -1;
    hp->rope_by = s->by;
    if (found)
        return 0;
    if (rope_number(s, "rope_theta", true, 1, &hp->rope.theta, &found, e))
        return -1;
    hp->rope_by = "rope_theta";
    if (found)
        return 0;
    num_text(t, class_theta);
    hp->rope_by = "class default";
    hp_note(s->r,
            "%s has no rope_theta in any spelling: the class default %s "
            "is used",
            s->r->level, t);
    return 0;
}

/* Elements of a head that are rotated, cut as transformers cuts. */
static int rope_width(struct hparams *hp, double part, struct err *e)
{
    char t[NUM_TEXT_MAX];
    double width = (double)hp->head_dim * part;

    num_text(t, part);
    if (!(part <= 1))
        return err_set(e, ERR_INPUT,
                       "'partial_rotary_factor' is %s, allowed are numbers "
                       "above 0 up to 1",
                       t);
    hp->rope.dim = (int)width;
    if (part == 1 && hp->rope.dim % 2)
        return err_set(e, ERR_INPUT,
                       "head_dim %" PRId64 " is odd: rotary pairs need an "
                       "even width",
                       hp->head_dim);
    if (hp->rope.dim < 2 || hp->rope.dim % 2)
        return err_set(e, ERR_INPUT,
                       "partial_rotary_factor %s of head_dim %" PRId64
                       " gives %d rotated elements: rotary pairs need an even "
                       "width",
                       t, hp->head_dim, hp->rope.dim);
    return 0;
}

static int rope_read(struct rope_src *s, struct hparams *hp, double part,
                     struct err *e)
{
    if (rope_width(hp, part, e))
        return -1;
    hp->rope.type = ROPE_DEFAULT;
    hp->rope.attention_scaling = 1;
    return rope_by_type(s, hp, e);
}

int hp_read_rope(const struct hp_reader *r, struct hparams *hp,
                 double class_theta, struct err *e)
{
    struct rope_src s = { .r = r };
    double part = 1;

    if (rope_object(&s, e) || rope_theta(&s, hp, class_theta, e) ||
        rope_number(&s, "partial_rotary_factor", true, 0, &part, NULL, e))
        return -1;
    if (part != 1) {
        char t[NUM_TEXT_MAX];
        num_text(t, part);
        return err_set(e, ERR_UNSUPPORTED,
                       "partial_rotary_factor %s is not computed for %s, only "
                       "1 is",
                       t, hp->arch->name);
    }
    return rope_read(&s, hp, part, e);
}

int hp_read_partial_rope(const struct hp_reader *r, struct hparams *hp,
                         double class_theta, double class_part, struct err *e)
{
    struct rope_src s = { .r = r };
    double part = class_part;
    char t[NUM_TEXT_MAX];
    bool found;

    if (rope_object(&s, e) || rope_theta(&s, hp, class_theta, e) ||
        rope_number(&s, "partial_rotary_factor", true, 0, &part, &found, e))
        return -1;
    num_text(t, part);
    if (!found)
        hp_note(r,
                "%s has no partial_rotary_factor in any spelling: the class "
                "default %s is used",
                r->level, t);
    return rope_read(&s, hp, part, e);
}

/* ---- one kind of layer ---- */

static int layer_object(struct rope_src *s, const struct hp_layer_rope *d,
                        struct err *e)
{
    const struct js_node *old = hp_value(s->r->text, "rope_scaling");
    const struct js_node *now = hp_value(s->r->text, "rope_parameters");

    if (old && js_kind(old) != JS_OBJECT)
        return hp_type_error(old, "rope_scaling", "an object or null", e);
    if (now && js_kind(now) != JS_OBJECT)
        return hp_type_error(now, "rope_parameters", "an object or null", e);
    s->object = hp_value(now, d->layer_type);
    s->by = "rope_parameters";
    if (s->object && js_kind(s->object) != JS_OBJECT)
        return hp_type_error(s->object, d->layer_type, "an object", e);
    if (now && !s->object)
        return err_set(e, ERR_INPUT,
                       "'rope_parameters' has no object '%s': this family's "
                       "is keyed by layer type",
                       d->layer_type);
    if (!d->old_scaling || !old || !js_count(old))
        return 0;
    if (now)
        return err_set(e, ERR_INPUT,
                       "'rope_scaling' and 'rope_parameters' are both there");
    s->object = old;
    s->by = "rope_scaling";
    return 0;
}

static int layer_theta(const struct rope_src *s, const struct hp_layer_rope *d,
                       struct rope_params *p, const char **by, struct err *e)
{
    const struct rope_src beside = { .r = s->r };
    char t[NUM_TEXT_MAX];
    bool found;

    p->theta = d->theta;
    *by = s->by;
    if (rope_number(s, "rope_theta", false, 1, &p->theta, &found, e))
        return -1;
    if (!found && d->theta_key) {
        *by = d->theta_key;
        if (rope_number(&beside, d->theta_key, true, 1, &p->theta, &found, e))
            return -1;
    }
    if (found)
        return 0;
    num_text(t, d->theta);
    *by = "class default";
    hp_note(s->r,
            "%s has no rope theta of %s layers in any spelling: the class "
            "default %s is used",
            s->r->level, d->layer_type, t);
    return 0;
}

/* Which pairs turn: the first ones, of frequencies spread over the whole. */
static int proportional(const struct rope_src *s, double part,
                        struct rope_params *p, struct err *e)
{
    char t[NUM_TEXT_MAX];

    if (rope_number(s, "factor", false, 0, &p->factor, NULL, e))
        return -1;
    p->live = (int)(part * p->dim / 2);
    num_text(t, part);
    if (!(part <= 1) || p->live < 1)
        return err_set(e, ERR_INPUT,
                       "'partial_rotary_factor' is %s: of the %d pairs of a "
                       "head, 1 to all can turn",
                       t, p->dim / 2);
    return 0;
}

static int layer_by_type(const struct rope_src *s, const char *type,
                         double part, struct rope_params *p, struct err *e)
{
    char t[HP_CLEAN_MAX], u[NUM_TEXT_MAX];

    if (!strcmp(type, "proportional")) {
        p->type = ROPE_PROPORTIONAL;
        return proportional(s, part, p, e);
    }
    if (strcmp(type, "default") && strcmp(type, "linear"))
        return err_set(e, ERR_UNSUPPORTED,
                       "rope type '%s' in %s is not computed for this family "
                       "(default, linear and proportional are)",
                       hp_clean(t, type), s->by);
    num_text(u, part);
    if (part != 1)
        return err_set(e, ERR_UNSUPPORTED,
                       "partial_rotary_factor %s with rope type '%s' is not "
                       "computed for this family, only 1 is",
                       u, type);
    if (!strcmp(type, "default"))
        return 0;
    p->type = ROPE_LINEAR;
    return rope_factor(s, "linear", p, e);
}

int hp_read_layer_rope(const struct hp_reader *r, const struct hp_layer_rope *d,
                       int64_t head_dim, struct rope_params *p, const char **by,
                       struct err *e)
{
    struct rope_src s = { .r = r };
    const char *type;
    double part;

    if (layer_object(&s, d, e) || layer_theta(&s, d, p, by, e) ||
        rope_type(&s, &type, e))
        return -1;
    if (!s.object && d->type)
        type = d->type;
    part = s.object ? 1 : d->part;
    if (rope_number(&s, "partial_rotary_factor", false, 0, &part, NULL, e))
        return -1;
    if (head_dim % 2)
        return err_set(e, ERR_INPUT,
                       "the head_dim %" PRId64 " of %s layers is odd: rotary "
                       "pairs need an even width",
                       head_dim, d->layer_type);
    p->dim = (int)head_dim;
    p->type = ROPE_DEFAULT;
    p->factor = 1;
    p->attention_scaling = 1;
    return layer_by_type(&s, type, part, p, e);
}

void hparams_context_notes(const struct hparams *hp, int64_t ctx,
                           struct buf *notes)
{
    char f[NUM_TEXT_MAX], o[NUM_TEXT_MAX];

    if (hp->rope.type != ROPE_YARN || hp->rope.factor <= 1 ||
        (double)ctx > hp->rope.original_max)
        return;
    num_text(f, hp->rope.factor);
    num_text(o, hp->rope.original_max);
    buf_printf(notes,
               "rope yarn with factor %s is on, though a context of %" PRId64
               " fits the native window of %s: short texts lose a little; "
               "consider a config without it\n",
               f, ctx, o);
}
