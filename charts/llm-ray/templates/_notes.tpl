{{/* What NOTES.txt says. */}}

{{/* A number and its noun. Usage: (list 2 "pod") → 2 pods */}}
{{- define "llm-ray.count" -}}
{{- $count := index . 0 | int -}}
{{ $count }} {{ index . 1 }}{{ ne $count 1 | ternary "s" "" }}
{{- end -}}

{{/* Usage: (list MIN MAX) → 2, or 2 to 4 */}}
{{- define "llm-ray.span" -}}
{{- $min := index . 0 | int -}}
{{- $max := index . 1 | int -}}
{{- $min -}}{{- if ne $min $max }} to {{ $max }}{{ end -}}
{{- end -}}

{{/* What an upgrade does with running pods. Usage: $ */}}
{{- define "llm-ray.upgradeNote" -}}
{{- $strategy := include "llm-ray.rolloutStrategy" . -}}
{{- if and (eq $strategy "recreate") (eq .Values.kuberay.version "1.5") -}}
none: KubeRay 1.5 keeps running pods as they are; delete them to renew them
{{- else if eq $strategy "recreate" -}}
recreate: what changes pods stops all of them and starts them anew; Serve settings change in place
{{- else if eq $strategy "blueGreen" -}}
blueGreen: what changes pods starts a second cluster beside this one, then traffic moves: there must be room for both
{{- else if eq $strategy "incremental" -}}
incremental: what changes pods starts a second cluster, and traffic moves in steps of {{ int .Values.rollout.incremental.stepSizePercent }} %
{{- else -}}
none: running pods stay as they are; delete them to renew them
{{- end -}}
{{- end -}}

{{/* CPUs that Ray sees in a pod: rayStartParams.num-cpus, else the limit rounded up. Usage: GROUP */}}
{{- define "llm-ray.rayCpus" -}}
{{- $param := index .spec.rayStartParams "num-cpus" -}}
{{- $limit := (.spec.resources.limits | default dict).cpu -}}
{{- if not (kindIs "invalid" $param) -}}
{{- $param -}}
{{- else if kindIs "invalid" $limit -}}
{{- int .cpus -}}
{{- else -}}
{{- divf (include "llm-ray.milli" $limit | float64) 1000 | ceil -}}
{{- end -}}
{{- end -}}

{{/* Things that are allowed but bite. Usage: $ → YAML list */}}
{{- define "llm-ray.warnings" -}}
{{- $kind := include "llm-ray.kind" . -}}
{{- $out := list -}}
{{- if gt (int .Values.engine.pipelineParallelSize) 1 -}}
{{- $out = append $out (printf "engine.pipelineParallelSize (%d): app version %s serves only 1; the application will not start with it" (int .Values.engine.pipelineParallelSize) .Chart.AppVersion) -}}
{{- end -}}
{{- $groups := (include "llm-ray.groups" . | fromJson).groups -}}
{{- range $groups -}}
{{- if .gpus -}}
{{- $out = append $out (printf "workers.%s.gpusPerNode (%d): app version %s computes on CPUs; these GPUs are reserved and stay idle" .name (int .spec.gpusPerNode) $.Chart.AppVersion) -}}
{{- end -}}
{{- if gt (include "llm-ray.milli" .shmSize | float64) (include "llm-ray.milli" .spec.resources.limits.memory | float64) -}}
{{- $out = append $out (printf "workers.%s.resources.limits.memory (%v): its /dev/shm may grow to %s, which counts against it; weights come on top" .name .spec.resources.limits.memory .shmSize) -}}
{{- end -}}
{{- if and (gt (int .hosts) 1) (eq $.Values.gang.provider "none") -}}
{{- $out = append $out (printf "workers.%s: one engine spans %d pods; with gang.provider none, half of them may wait for ever and hold what others need" .name (int .hosts)) -}}
{{- end -}}
{{- $seen := include "llm-ray.rayCpus" . | float64 -}}
{{- if and (gt (int .hosts) 1) (not .gpus) (ge $seen (mulf (add1 .ranks) $.Values.engine.numCpusPerRank)) -}}
{{- $out = append $out (printf "workers.%s: Ray sees %v CPUs in a pod and may give it more than %s of engine.numCpusPerRank %v, and another pod none; let %d of them need more than there are, by that key or a smaller serve.deployment.replicaNumCpus" .name $seen (include "llm-ray.count" (list .ranks "rank")) $.Values.engine.numCpusPerRank (add1 .ranks)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.autoscaling -}}
{{- if eq .mode "hpa" -}}
{{- $out = append $out (printf "autoscaling.mode hpa: needs the chart llm-ray-scaler (CRD workergroupscales.llm-ray.io), pods that Prometheus scrapes, and %s" (eq .hpa.provider "keda" | ternary "KEDA" (printf "an adapter that serves %s" .hpa.metricName))) -}}
{{- $scrape := $.Values.monitoring.podMonitor -}}
{{- if not $scrape.enabled -}}
{{- $out = append $out "monitoring.podMonitor.enabled (false): the metric counts series by the labels llm_ray_name and llm_ray_group, which whatever scrapes the pods must put on them" -}}
{{- else if gt (include "llm-ray.seconds" $scrape.interval | float64) 5.0 -}}
{{- $out = append $out (printf "monitoring.podMonitor.interval (%s): from load to a new count it takes up to 25s and this; 5s keeps it within 30s" $scrape.interval) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (include "llm-ray.modelIsFetched" .) (eq .Values.model.cache.type "hostPath") -}}
{{- $out = append $out (printf "model.cache.type hostPath: Pod Security `baseline` forbids it, and %s must be writable for user %v on every node" .Values.model.cache.hostPath (.Values.security.podSecurityContext.runAsUser | default 1000 | int)) -}}
{{- end -}}
{{- $cache := .Values.model.cache -}}
{{- $claims := and (include "llm-ray.modelIsFetched" .) (has $cache.type (list "pvc" "ephemeral")) (not $cache.existingClaim) -}}
{{- if and $claims (kindIs "invalid" $cache.storageClassName) -}}
{{- $out = append $out "model.cache.storageClassName (null): claims stay Pending unless the cluster has a default storage class (kubectl get storageclass marks it)" -}}
{{- else if and $claims $cache.storageClassName -}}
{{- $out = append $out (printf "model.cache.storageClassName (%s): claims stay Pending unless the cluster has that storage class (kubectl get storageclass)" $cache.storageClassName) -}}
{{- end -}}
{{- if and (ne .Values.fabric.type "none") .Values.fabric.rdma -}}
{{- $out = append $out (printf "fabric.rdma: capability IPC_LOCK needs a namespace that Pod Security leaves at `privileged` (kubectl label namespace %s pod-security.kubernetes.io/enforce=privileged), or an exemption" .Release.Namespace) -}}
{{- with .Values.security.podSecurityContext.runAsUser -}}
{{- $out = append $out (printf "fabric.rdma: a capability has no effect for user %v until the node's container runtime runs with an unlimited memlock (LimitMEMLOCK=infinity)" (int .)) -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.gang.provider "podgroup" -}}
{{- $out = append $out "gang.provider podgroup: the KubeRay operator must run without --batch-scheduler, or its own PodGroup takes the pods and nothing starts" -}}
{{- end -}}
{{- if eq .Values.gang.provider "kuberay" -}}
{{- $out = append $out (printf "gang.provider kuberay: the operator must run with --batch-scheduler=%s, or pods are placed one by one" .Values.gang.scheduler) -}}
{{- end -}}
{{- if and (eq $kind "RayService") (ne .Values.autoscaling.mode "fixed") -}}
{{- $out = append $out "RayService: KubeRay passes a new minReplicas or maxReplicas on only to the next cluster, not to the one that runs" -}}
{{- end -}}
{{- if and (eq $kind "RayCluster") (ne .Values.autoscaling.mode "fixed") -}}
{{- $out = append $out "autoscaling.allowReplicaReset: an upgrade sets the number of worker groups back (Helm 3), or fails with a conflict (Helm 4)" -}}
{{- end -}}
{{- if and .Values.auth.rayToken.enabled (not .Values.auth.rayToken.existingSecret) -}}
{{- $out = append $out (printf "auth.rayToken: the operator makes the Secret %s with the token" (include "llm-ray.fullname" .)) -}}
{{- end -}}
{{- if eq (include "llm-ray.modelKind" .) "oci" -}}
{{- $out = append $out "model.source oci://: image volumes need Kubernetes 1.35, or the feature gate ImageVolume before it, and a container runtime that has them" -}}
{{- end -}}
{{- $hostNetwork := .Values.head.hostNetwork | ternary (list "head") list -}}
{{- range (include "llm-ray.groups" . | fromJson).groups -}}
{{- $hostNetwork = .spec.hostNetwork | ternary (append $hostNetwork .name) $hostNetwork -}}
{{- end -}}
{{- if and $hostNetwork .Values.networkPolicy.enabled -}}
{{- $out = append $out (printf "hostNetwork (%s): network policies do not apply to these pods; whoever reaches the node reaches Ray" (join ", " $hostNetwork)) -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}
