{{/* PromQL matchers of this release's series, without braces. */}}
{{- define "specdec.matchers" -}}
namespace="{{ .Release.Namespace }}",release="{{ .Release.Name }}"
{{- end -}}

{{/* PromQL of what a tier has to carry: what its autoscaler divides among replicas. A tier that may be empty cannot say what it is wanted
     for, so those before it do; where they cannot be read either, there is no value, which is not 0. Where gateways serve several models,
     requests that run are not told apart, and those without a verifier are. */}}
{{- define "specdec.demand" -}}
{{- $matchers := include "specdec.matchers" .root -}}
{{- $gateways := printf "sum(specdec_gateway_requests_running{%s})" $matchers -}}
{{- if eq .tier "drafter" -}}
sum(specdec_requests_running{ {{- $matchers -}} }) or {{ $gateways }}
{{- else if eq .tier "verifier" -}}
sum(specdec_requests_running{ {{- $matchers -}} }) + sum(specdec_requests_waiting{ {{- $matchers -}} })
{{- if .root.Values.models }} or {{ else }} or {{ $gateways }} + {{ end -}}
sum(increase(specdec_unserved_requests_total{ {{- $matchers -}}
{{- if .root.Values.models }},model={{ include "specdec.servedName" .root | quote }}{{ end -}} }[2m]))
{{- else -}}
{{ $gateways }}
{{- end -}}
{{- end -}}

{{/* PromQL of the share of all verifiers' KV used by running generations. 0 without verifiers. */}}
{{- define "specdec.kvDemand" -}}
{{- $matchers := include "specdec.matchers" .root -}}
sum(specdec_kv_cache_usage_ratio{ {{- $matchers -}} }) or 0 * sum(specdec_gateway_requests_running{ {{- $matchers -}} })
{{- end -}}

{{/* Regular expression of the series that only this tier exports. They are absent at 0 replicas. */}}
{{- define "specdec.ownSeries" -}}
{{- if eq .tier "drafter" -}}
specdec_drafter_(tokens|computed|step|batch|sessions|dropped|kv|streams|refused|nacks|frames|bytes)|specdec:(draft|cost|speedup)
{{- else -}}
specdec_(spec|requests_(running|waiting)|kv_cache|verify|batch|admission|preemptions|prefix|drafter)|specdec:
{{- end -}}
{{- end -}}

{{/* A Prometheus trigger of KEDA: (dict "root" $ "query" "sum(x)" "threshold" "1"). */}}
{{- define "specdec.trigger" -}}
{{- $auth := .root.Values.metrics.prometheusAuth -}}
- type: prometheus
  metadata:
    serverAddress: {{ .root.Values.metrics.prometheusAddress }}
    query: {{ .query | quote }}
    threshold: {{ .threshold | quote }}
    # No value is no demand of 0: the fallback holds then.
    ignoreNullValues: "false"
    {{- $headers := list }}
    {{- range $name, $value := $auth.headers }}{{ $headers = append $headers (printf "%s=%s" $name $value) }}{{ end }}
    {{- with $headers }}
    customHeaders: {{ join "," . | quote }}
    {{- end }}
    {{- if $auth.tokenSecret.name }}
    authModes: bearer
  authenticationRef: {name: {{ include "specdec.name" (dict "root" .root "tier" "metrics") }}}
    {{- end }}
{{- end -}}

{{/* Metrics of a tier's HorizontalPodAutoscaler. An accelerator is always busy, so a GPU tier scales by its queue and its KV. */}}
{{- define "specdec.hpaMetrics" -}}
{{- if eq .tier "drafter" -}}
- {type: Pods, pods: {metric: {name: specdec_drafter_sessions}, target: {type: AverageValue, averageValue: "32"}}}
{{- else if eq .tier "verifier" -}}
- {type: Pods, pods: {metric: {name: specdec_requests_waiting}, target: {type: AverageValue, averageValue: "1"}}}
- {type: Pods, pods: {metric: {name: specdec_kv_cache_usage_ratio}, target: {type: AverageValue, averageValue: 800m}}}
{{- else -}}
- {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 70}}}
{{- end -}}
{{- end -}}

{{/* Scaling behavior of a tier's autoscaler. */}}
{{- define "specdec.behavior" -}}
{{- $calm := dict "scaleDown" (dict "stabilizationWindowSeconds" .scaleDownSeconds) -}}
{{ toYaml (mustMergeOverwrite $calm .behavior) }}
{{- end -}}

{{/* Labels of every series, by which rules and dashboards distinguish tiers and releases. */}}
{{- define "specdec.relabelings" -}}
- {targetLabel: component, replacement: {{ .tier }}}
- {targetLabel: release, replacement: {{ .root.Release.Name }}}
{{- end -}}

{{/* Whether a tier has a pod at all times. The ratio controller reports when it wants none. */}}
{{- define "specdec.isNeverEmpty" -}}
{{- $ratio := eq (index .root.Values .tier).autoscaling.kind "ratio" -}}
{{- if or $ratio (gt (include "specdec.leastReplicas" . | int) 0) }}true{{ end -}}
{{- end -}}

{{/* What a readiness probe asks for. A gateway without verifiers is not ready; where verifiers may be at 0, it has to take the requests that
     wake them, so it is asked only whether it lives. */}}
{{- define "specdec.readyService" -}}
{{- $verifier := dict "root" .root "tier" "verifier" -}}
{{- $wakes := and .root.Values.verifier.enabled (not (include "specdec.isNeverEmpty" $verifier)) -}}
{{- if and (eq .tier "gateway") $wakes -}}
liveness
{{- else -}}
{{ include "specdec.healthService" . }}
{{- end -}}
{{- end -}}

{{/* Whether `helm test` requires drafts. False if there may be no drafter or drafts are disabled. */}}
{{- define "specdec.testDrafts" -}}
{{- $least := include "specdec.leastReplicas" (dict "root" . "tier" "drafter") | int -}}
{{ ternary "required" "optional" (and (or .Values.drafter.external.addresses (and .Values.drafter.enabled (gt $least 0))) (gt (int .Values.speculation.gammaMax) 0)) }}
{{- end -}}

{{/* Groups of recording and alert rules, as Prometheus reads them. */}}
{{- define "specdec.ruleGroups" -}}
{{- $rule := .Values.metrics.prometheusRule }}
{{- $given := dict
  "ratio" (include "specdec.ratio" .)
  "tls" .Values.tls.enabled
  "gateways" .Values.gateway.enabled
  "publicTls" (and .Values.gateway.enabled .Values.gateway.tls.public.existingSecret)
  "apiKeys" (and .Values.gateway.enabled .Values.gateway.apiKeys.existingSecret)
  "gateway" .Values.gateway.enabled
  "verifier" .Values.verifier.enabled
  "drafter" .Values.drafter.enabled
  "discovery" (or .Values.gateway.enabled .Values.verifier.enabled)
  "drafts" (and .Values.verifier.enabled (or .Values.drafter.external.addresses (and .Values.drafter.enabled (include "specdec.isNeverEmpty" (dict "root" . "tier" "drafter")))))
  "verifiers" (and .Values.verifier.enabled (include "specdec.isNeverEmpty" (dict "root" . "tier" "verifier")))
  "drafters" (and .Values.drafter.enabled (include "specdec.isNeverEmpty" (dict "root" . "tier" "drafter"))) }}
{{- $file := .Files.Get "files/rules.yaml"
  | replace "NAMESPACE" .Release.Namespace
  | replace "RELEASE" .Release.Name
  | replace "MIN_ACCEPTANCE" ($rule.minAcceptance | toString)
  | replace "MIN_SPEEDUP" (.Values.speculation.minSpeedup | toString)
  | replace "MAX_FIRST_TOKEN" ($rule.maxFirstTokenSeconds | toString)
  | replace "AVAILABLE_SHARE" ($rule.objectives.available | toString)
  | replace "FIRST_TOKEN_SHARE" ($rule.objectives.firstToken | toString)
  | replace "FIRST_TOKEN_BOUND" ($rule.objectives.firstTokenSeconds | toString)
  | fromYaml }}
{{- range $part := $file.groups }}
- name: {{ $part.name }}
  rules:
    {{- range $part.rules }}
    {{- if or (not .needs) (index $given (.needs | default "")) }}
    {{- if .alert }}{{ $_ := set .annotations "runbook_url" (printf "%s#%s" $rule.runbooks (lower .alert)) }}{{ end }}
    {{- list (omit . "needs") | toYaml | nindent 4 }}
    {{- end }}
    {{- end }}
{{- end }}
{{- end -}}
