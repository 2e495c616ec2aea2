{{/* Checks that the schema cannot express. Each mistake is one sentence, and all are reported at once. */}}
{{- define "specdec.validate" -}}
{{- $wrong := list -}}
{{- $sessions := dict "root" . "prefix" "redis" "redis" .Values.redis -}}
{{- $blocks := dict "root" . "prefix" "redis-kv" "redis" .Values.redis.kv -}}
{{- if and .Values.gateway.enabled (not (include "specdec.redisIsGiven" $sessions)) -}}
{{- $wrong = append $wrong "Gateways keep sessions in Redis: set redis.external.url, redis.external.existingSecret or redis.external.addresses, or redis.dev.enabled=true to try things out." -}}
{{- end -}}
{{- if and (include "specdec.redisIsExternal" $sessions) .Values.redis.dev.enabled -}}
{{- $wrong = append $wrong "Sessions have one server: set either redis.external or redis.dev.enabled=true, not both." -}}
{{- end -}}
{{- range $name, $role := dict "redis" $sessions "redis.kv" $blocks -}}
{{- $external := $role.redis.external -}}
{{- if and (gt (len $external.addresses) 1) (not $external.sentinelMaster) -}}
{{- $wrong = append $wrong (printf "%s.external.addresses holds several Sentinels or one server: set %s.external.sentinelMaster, or leave one address." $name $name) -}}
{{- end -}}
{{- if contains "@" $external.url -}}
{{- $wrong = append $wrong (printf "%s.external.url must not hold a password, for values are kept in the release: put the whole URL in a Secret and name it in %s.external.existingSecret." $name $name) -}}
{{- end -}}
{{- end -}}
{{- if and (include "specdec.redisIsExternal" $sessions) (eq (include "specdec.redisServer" $sessions) (include "specdec.redisServer" $blocks)) -}}
{{- $wrong = append $wrong "Blocks of keys and values may be evicted and sessions may not: give redis.kv.external another server than redis.external." -}}
{{- end -}}
{{- if and .Values.tls.enabled (eq (include "specdec.tlsMode" .) "certManager") (not .Values.tls.certManager.issuerRef.name) -}}
{{- $wrong = append $wrong "Mutual TLS by cert-manager needs an issuer: set tls.certManager.issuerRef.name." -}}
{{- end -}}
{{- if and .Values.tls.enabled (eq (include "specdec.tlsMode" .) "selfSigned") -}}
{{- $drafters := or .Values.models .Values.drafter.external.addresses (and .Values.drafter.enabled (not .Values.verifier.enabled)) -}}
{{- $verifiers := or .Values.verifier.external.addresses (and .Values.verifier.enabled (not .Values.gateway.enabled)) -}}
{{- if or $drafters $verifiers -}}
{{- $wrong = append $wrong "Tiers of several releases need one authority: set tls.certManager.issuerRef or tls.existingSecrets, or tls.enabled=false." -}}
{{- end -}}
{{- if not .Values.rbac.create -}}
{{- $wrong = append $wrong "Without rbac.create nobody may make certificates: set tls.certManager.issuerRef or tls.existingSecrets, or tls.enabled=false." -}}
{{- end -}}
{{- end -}}
{{- $parallel := int .Values.verifier.tensorParallelSize -}}
{{- if and (gt $parallel 1) (ne .Values.verifier.backend "vllm") -}}
{{- $wrong = append $wrong "The native engine uses one accelerator: set verifier.backend=vllm, or verifier.tensorParallelSize=1." -}}
{{- end -}}
{{- if and .Values.verifier.gpu.enabled (eq .Values.verifier.backend "vllm") (ne $parallel (int .Values.verifier.gpu.count)) -}}
{{- $wrong = append $wrong "vLLM uses as many accelerators as it is split over: set verifier.gpu.count to verifier.tensorParallelSize." -}}
{{- end -}}
{{- range $name, $model := .Values.models -}}
{{- if and $model.path (not (hasPrefix "/" $model.path)) (not (has $.Values.gateway.model.source (list "claim" "oci"))) -}}
{{- $wrong = append $wrong (printf "models.%s.path is inside the claim or the OCI image of gateway.model, and there is none: begin it with a slash." $name) -}}
{{- end -}}
{{- if and $model.huggingFace (not (include "specdec.downloads" $.Values.gateway)) -}}
{{- $wrong = append $wrong (printf "models.%s is downloaded beside gateway.model, which is not: set gateway.model.source=huggingFace, or models.%s.path." $name $name) -}}
{{- end -}}
{{- if eq $name (include "specdec.servedName" $) -}}
{{- $wrong = append $wrong (printf "models.%s has the name of gateway.model: give one of the two another name." $name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.gateway.enabled (not .Values.verifier.enabled) (not .Values.verifier.external.addresses) -}}
{{- $wrong = append $wrong "Gateways need verifiers: set verifier.enabled=true, or verifier.external.addresses to those of another release." -}}
{{- end -}}
{{- if and (include "specdec.ratio" .) (not .Values.verifier.enabled) (not .Values.metrics.prometheusAddress) -}}
{{- $wrong = append $wrong "The ratio controller reads the metrics of verifiers, and this release has none: set metrics.prometheusAddress." -}}
{{- end -}}
{{- if eq .Values.drafter.autoscaling.kind "ratio" -}}
{{- if not .Values.drafter.enabled -}}
{{- $wrong = append $wrong "The ratio controller scales drafters, and there are none: set drafter.enabled=true, or another drafter.autoscaling.kind." -}}
{{- end -}}
{{- end -}}
{{- if and .Values.gateway.enabled .Values.tests.enabled .Values.gateway.apiKeys.existingSecret (not .Values.tests.apiKey.existingSecret) -}}
{{- $wrong = append $wrong "Gateways ask for an API key, and `helm test` has none: set tests.apiKey.existingSecret, or tests.enabled=false." -}}
{{- end -}}
{{- range $tier := splitList " " (include "specdec.tiers" .) -}}
{{- $values := index $.Values $tier -}}
{{- if and $.Values.tls.enabled (eq (include "specdec.tlsMode" $) "existingSecrets") (not (index $.Values.tls.existingSecrets $tier)) -}}
{{- $wrong = append $wrong (printf "Mutual TLS needs a certificate for the %s: set tls.existingSecrets.%s." $tier $tier) -}}
{{- end -}}
{{- $ending := add (include "specdec.preStopSeconds" $values | int) ($values.drain.seconds | default 2) -}}
{{- if le (int $values.terminationGracePeriodSeconds) (int $ending) -}}
{{- $wrong = append $wrong (printf "A %s that ends takes up to %d s (preStop and drain) and would be killed after %d s: raise %s.terminationGracePeriodSeconds." $tier (int $ending) (int $values.terminationGracePeriodSeconds) $tier) -}}
{{- end -}}
{{- $each := dict "root" $ "tier" $tier -}}
{{- $most := include "specdec.mostReplicas" $each | int -}}
{{- if and (include "specdec.cacheIsOfOneNode" $each) (gt $most 1) -}}
{{- $wrong = append $wrong (printf "Up to %d pods of the %s share a cache that one node at a time can mount: set %s.model.cache.accessModes=[ReadWriteMany], or one replica." $most $tier $tier) -}}
{{- end -}}
{{- $load := include "specdec.loadSeconds" $each | int -}}
{{- if and $values.progressDeadlineSeconds (le (int $values.progressDeadlineSeconds) $load) -}}
{{- $wrong = append $wrong (printf "A new %s may take %d s (download, start and minReadySeconds), and its rollout would fail after %d s: raise %s.progressDeadlineSeconds." $tier $load (int $values.progressDeadlineSeconds) $tier) -}}
{{- end -}}
{{- if and (eq $values.autoscaling.kind "keda") (not $.Values.metrics.prometheusAddress) -}}
{{- $wrong = append $wrong (printf "KEDA scales the %s by what Prometheus knows: set metrics.prometheusAddress." $tier) -}}
{{- end -}}
{{- if and (eq $values.autoscaling.kind "keda") (eq (int $values.autoscaling.minReplicas) 0) -}}
{{- if eq $tier "gateway" -}}
{{- $wrong = append $wrong "Nothing could wake a gateway, for gateways count the requests: set gateway.autoscaling.minReplicas to 1 or more." -}}
{{- else if and (regexMatch (include "specdec.ownSeries" $each) $values.autoscaling.keda.query) (not (contains " or " $values.autoscaling.keda.query)) -}}
{{- $wrong = append $wrong (printf "Nothing could wake a %s, for at 0 replicas the series of %s.autoscaling.keda.query are gone: add `or` and a series of those before it, or set minReplicas to 1 or more." $tier $tier) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $values.autoscaling.kind "keda") (not $values.autoscaling.keda.query) (not $.Values.gateway.enabled) -}}
{{- $sees := and (eq $tier "drafter") $.Values.verifier.enabled -}}
{{- if not (or $sees (and (eq $tier "verifier") $values.autoscaling.minReplicas)) -}}
{{- $wrong = append $wrong (printf "Nothing could wake a %s, for those who see the demand are of other releases: set %s.autoscaling.keda.query to their series%s." $tier $tier (ternary ", or minReplicas to 1 or more" "" (eq $tier "verifier"))) -}}
{{- end -}}
{{- end -}}
{{- if and (ne $values.autoscaling.kind "none") (gt (int $values.autoscaling.minReplicas) (int $values.autoscaling.maxReplicas)) -}}
{{- $wrong = append $wrong (printf "%s.autoscaling.minReplicas must not be more than %s.autoscaling.maxReplicas." $tier $tier) -}}
{{- end -}}
{{- if and (eq $values.autoscaling.kind "hpa") (eq (int $values.autoscaling.minReplicas) 0) -}}
{{- $wrong = append $wrong (printf "A HorizontalPodAutoscaler keeps at least one pod: set %s.autoscaling.minReplicas to 1 or more." $tier) -}}
{{- end -}}
{{- if and (ne ($values.backend | default "native") "vllm") $values.gpu (gt (int (dig "count" 1 ($values.gpu | default dict))) 1) -}}
{{- $wrong = append $wrong (printf "%s.gpu.count is %d, and one process uses one accelerator: set it to 1, and run more replicas." $tier (int $values.gpu.count)) -}}
{{- end -}}
{{- $model := $values.model -}}
{{- if and (eq $model.source "claim") (not $model.existingClaim) -}}
{{- $wrong = append $wrong (printf "The %s's model lies in a claim: set %s.model.existingClaim." $tier $tier) -}}
{{- end -}}
{{- if and (has $model.source (list "claim" "oci")) (hasPrefix "/" $model.path) -}}
{{- $wrong = append $wrong (printf "%s.model.path is a path inside the %s: it must not begin with a slash." $tier (ternary "claim" "OCI image" (eq $model.source "claim"))) -}}
{{- end -}}
{{- if and (eq $model.source "oci") (not $model.oci.reference) -}}
{{- $wrong = append $wrong (printf "The %s's model lies in an OCI image: set %s.model.oci.reference." $tier $tier) -}}
{{- end -}}
{{- if and (eq $model.source "s3") (not $model.s3.uri) -}}
{{- $wrong = append $wrong (printf "The %s's model is downloaded: set %s.model.s3.uri." $tier $tier) -}}
{{- end -}}
{{- if and (eq $model.source "image") (not (hasPrefix "/" $model.path)) -}}
{{- $wrong = append $wrong (printf "%s.model.path is a path inside the image: it must begin with a slash." $tier) -}}
{{- end -}}
{{- if and (eq $model.source "huggingFace") (not $model.huggingFace.repository) -}}
{{- $wrong = append $wrong (printf "The %s's model is downloaded: set %s.model.huggingFace.repository." $tier $tier) -}}
{{- end -}}
{{- if and (include "specdec.downloads" $values) (eq $model.cache.kind "existingClaim") (not $model.cache.existingClaim) -}}
{{- $wrong = append $wrong (printf "The %s's models are kept in a claim: set %s.model.cache.existingClaim." $tier $tier) -}}
{{- end -}}
{{- end -}}
{{- if and (or .Values.gatewayApi.httpRoute.enabled .Values.gatewayApi.grpcRoute.enabled) (not .Values.gatewayApi.parentRefs) -}}
{{- $wrong = append $wrong "Routes hang on a Gateway: set gatewayApi.parentRefs." -}}
{{- end -}}
{{- if and (eq .Values.gateway.service.ipFamilyPolicy "SingleStack") (gt (len .Values.gateway.service.ipFamilies) 1) -}}
{{- $wrong = append $wrong "gateway.service.ipFamilies holds two families, and SingleStack takes one: set gateway.service.ipFamilyPolicy to PreferDualStack or RequireDualStack." -}}
{{- end -}}
{{- if $wrong -}}
{{- fail (printf "\n\n%s\n" (join "\n" $wrong)) -}}
{{- end -}}
{{- end -}}
