/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Inputs of a session program: entry or return, and the cookie with op and link.
 *
 * The kernel's functions read both from the run context of the current task. A function call costs as much as a small
 * lookup where returns are protected (Safe RET), so if the kernel's types match, the context is read directly, as
 * bpf_session_is_return and bpf_get_attach_cookie_uprobe_multi do in kernel/trace/bpf_trace.c (6.13 to 6.19). */
#pragma once

/* Since 6.13; with the context as argument since 7.0. */
extern bool bpf_session_is_return(void) __ksym __weak;
extern bool bpf_session_is_return___with_context(void *ctx) __ksym __weak;

/* For an unknown run. */
#define NO_RUN ((const struct bpf_uprobe_multi_run_ctx *)0)

static __always_inline const struct bpf_uprobe_multi_run_ctx *session_run(struct task_struct *task)
{
	if (!bpf_ksym_exists(bpf_session_is_return) || bpf_ksym_exists(bpf_session_is_return___with_context) ||
	    !bpf_ksym_exists(bpf_rdonly_cast) || !bpf_core_field_exists(struct task_struct, bpf_ctx) ||
	    !bpf_core_field_exists(struct bpf_uprobe_multi_run_ctx, session_ctx.is_return) ||
	    !bpf_core_field_exists(struct bpf_uprobe, cookie))
		return NO_RUN;
	return bpf_rdonly_cast(UNTRUSTED(task_struct, task)->bpf_ctx,
			       bpf_core_type_id_kernel(struct bpf_uprobe_multi_run_ctx));
}

static __always_inline bool is_return(void *ctx, const struct bpf_uprobe_multi_run_ctx *run)
{
	if (run)
		return run->session_ctx.is_return;
	if (bpf_ksym_exists(bpf_session_is_return___with_context))
		return bpf_session_is_return___with_context(ctx);
	if (bpf_ksym_exists(bpf_session_is_return))
		return bpf_session_is_return();
	return false;
}

static __always_inline __u64 cookie_of(void *ctx, const struct bpf_uprobe_multi_run_ctx *run)
{
	return run ? run->uprobe->cookie : bpf_get_attach_cookie(ctx);
}
